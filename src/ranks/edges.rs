//! Edges that are drawn by the ranks that own their vertices, for ranks that use only the in-edges of their own vertices.
//!
//! A pull has two rounds of letters: vertices go out, the edges that were drawn of them come back. The letter with the
//! vertices says by its length how many there are, and the answer has as many rows, so no round is needed for counts.

use std::ops::Range;

use bytemuck::{cast_slice, pod_collect_to_vec};

use super::owners::Owners;
use super::series::{Ending, Series};
use super::{Ranks, Subject};
use crate::error::{Error, Result};
use crate::sample::DrawnEdges;

/// The graph whose edges are drawn, as far as letters are checked against it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Number of vertices.
    pub vertices: usize,
    /// Number of edges, if their positions are sent too.
    pub edges: Option<usize>,
}

/// A series of pulls of drawn edges, which all ranks make together, with the same numbers.
pub(crate) struct EdgePulls {
    series: Series,
    owners: Owners,
    bounds: Bounds,
}

/// The edges of one pull.
pub(crate) struct PulledEdges<'p> {
    owners: &'p Owners,
    vertices: Vec<u32>,
    /// For each vertex, the place of its edges among those that its owner drew.
    places: Vec<u32>,
    /// The edges that each rank drew for this one.
    of_ranks: Vec<DrawnEdges>,
    /// Rounds of letters.
    pub rounds: u64,
    /// Number of edges that other ranks drew.
    pub edge_count: u64,
    /// Bytes of these edges, and of the vertices that they were asked for.
    pub bytes: u64,
}

impl EdgePulls {
    /// Begins a series of pulls in which rank `r` owns the vertices `offsets[r]..offsets[r + 1]`. All ranks have to begin
    /// the same series, in the same order.
    ///
    /// # Panics
    /// If there is not one range for each rank.
    pub(crate) fn begin(ranks: &Ranks, offsets: Vec<usize>, bounds: Bounds) -> Self {
        Self { series: Series::begin(ranks), owners: Owners::new(ranks, offsets), bounds }
    }

    /// Returns edges of vertices that are all of this rank, without a letter. `draw` draws those of some vertices.
    ///
    /// # Errors
    /// Those of `draw`.
    /// # Panics
    /// If another rank owns one of the vertices.
    pub(crate) fn own(
        &self,
        vertices: Vec<u32>,
        draw: impl FnOnce(&[u32]) -> Result<DrawnEdges>,
    ) -> Result<PulledEdges<'_>> {
        let own = self.owners.own();
        assert!(vertices.iter().all(|&v| own.contains(&(v as usize))), "these are vertices of this rank");
        let mut pulled = self.nothing(vertices);
        let drawn = draw(&pulled.vertices)?;
        pulled.of_ranks[self.owners.rank()] = self.trimmed(drawn);
        pulled.places = (0..pulled.vertices.len() as u32).collect();
        Ok(pulled)
    }

    /// Pulls edges of vertices of any ranks. They may be repeated; each vertex of another rank is asked for once. `draw`
    /// draws the edges of some vertices of this rank. All ranks have to call it with the same number.
    ///
    /// # Errors
    /// Those of `draw`; [`Error::WrongLetter`]; [`Error::OtherRank`]; [`Error::WorkersGone`] if another thread ends the
    /// series meanwhile.
    /// # Cost
    /// One letter to each other rank, with 4 bytes for each of its vertices. One letter to each rank that asks for edges:
    /// 12 bytes for each vertex, 4 for each edge, and 8 for its position if that is sent. O(vertices log vertices) time.
    pub(crate) fn pull(
        &self,
        number: u64,
        vertices: Vec<u32>,
        mut draw: impl FnMut(&[u32]) -> Result<DrawnEdges>,
    ) -> Result<PulledEdges<'_>> {
        let (series, owners) = (&self.series, &self.owners);
        let (asked, places) = owners.asked(&vertices);
        let others = || (0..owners.count()).filter(|&rank| rank != owners.rank());
        for to in others() {
            let content: &[u8] = cast_slice(&asked[to]);
            series.send(to, (Subject::Frontier, number), content.len(), std::iter::once(content));
        }
        let mut pulled = PulledEdges { places, ..self.nothing(vertices) };
        let own = pulled.place_own();
        pulled.of_ranks[owners.rank()] = self.trimmed(draw(&own)?);
        for from in others() {
            let wanted = owners.wanted(from, &series.wait(from, (Subject::Frontier, number))?)?;
            if !wanted.is_empty() {
                let drawn = self.trimmed(draw(&wanted)?);
                let of_rows = counts_of_rows(&drawn);
                let (offsets, sources, positions) = (&drawn.offsets, &drawn.sources, &drawn.positions);
                let pieces: [&[u8]; 4] =
                    [cast_slice(offsets), cast_slice(&of_rows), cast_slice(sources), cast_slice(positions)];
                let bytes = pieces.iter().map(|piece| piece.len()).sum();
                series.send(from, (Subject::Drawn, number), bytes, pieces.into_iter());
            }
        }
        pulled.rounds += 1;
        for from in others().filter(|&rank| !asked[rank].is_empty()) {
            let content = series.wait(from, (Subject::Drawn, number))?;
            let drawn = self.answer(asked[from].len(), &content);
            let drawn = drawn.map_err(|why| Error::WrongLetter { rank: from, why: why.into() })?;
            pulled.edge_count += drawn.sources.len() as u64;
            pulled.bytes += (content.len() + 4 * asked[from].len()) as u64;
            pulled.of_ranks[from] = drawn;
        }
        pulled.rounds += 1;
        Ok(pulled)
    }

    /// Returns a guard that ends the series when it is dropped: a pull that waits in another thread then ends with an
    /// error.
    pub(crate) fn ending(&self) -> Ending<'_> {
        self.series.ending()
    }

    fn nothing(&self, vertices: Vec<u32>) -> PulledEdges<'_> {
        let of_ranks = vec![DrawnEdges::default(); self.owners.count()];
        PulledEdges { owners: &self.owners, vertices, places: Vec::new(), of_ranks, rounds: 0, edge_count: 0, bytes: 0 }
    }

    /// Returns edges without their positions, if these are not sent.
    fn trimmed(&self, mut drawn: DrawnEdges) -> DrawnEdges {
        if self.bounds.edges.is_none() {
            drawn.positions.clear();
        }
        drawn
    }

    /// Reads the edges that another rank has drawn of this number of vertices: where each row ends, how many edges each edge
    /// of a row stands for, the sources, and the positions if they are sent.
    fn answer(&self, rows: usize, content: &[u8]) -> std::result::Result<DrawnEdges, &'static str> {
        let length = "it has another length than the edges of these vertices";
        let (offsets, rest) = content.split_at_checked(8 * (rows + 1)).ok_or(length)?;
        let offsets: Vec<u64> = pod_collect_to_vec(offsets);
        if offsets[0] != 0 || !offsets.is_sorted() {
            return Err("its rows are not in order");
        }
        let edge_bytes = if self.bounds.edges.is_some() { 12 } else { 4 };
        let bytes = offsets[rows].checked_mul(edge_bytes).and_then(|bytes| bytes.checked_add(4 * rows as u64));
        if bytes != Some(rest.len() as u64) {
            return Err(length);
        }
        let (of_rows, rest) = rest.split_at(4 * rows);
        let (sources, positions) = rest.split_at(4 * offsets[rows] as usize);
        let (sources, positions): (Vec<u32>, Vec<u64>) = (pod_collect_to_vec(sources), pod_collect_to_vec(positions));
        if sources.iter().any(|&u| u as usize >= self.bounds.vertices) {
            return Err("an edge comes from a vertex that the graph does not have");
        }
        let edges = self.bounds.edges.unwrap_or_default() as u64;
        if positions.iter().any(|&position| position >= edges) {
            return Err("it has an edge that the graph does not have");
        }
        let of_rows: Vec<f32> = pod_collect_to_vec(of_rows);
        let mut stands_for = vec![0.0; sources.len()];
        for (row, count) in offsets.windows(2).zip(of_rows) {
            stands_for[row[0] as usize..row[1] as usize].fill(count);
        }
        Ok(DrawnEdges { offsets, positions, sources, stands_for })
    }
}

/// Returns, for each row, how many edges each of its edges stands for.
fn counts_of_rows(drawn: &DrawnEdges) -> Vec<f32> {
    let count = |row: usize| drawn.stands_for[drawn.row(row)].first().copied().unwrap_or_default();
    (0..drawn.row_count()).map(count).collect()
}

impl PulledEdges<'_> {
    /// Sets the places of the vertices of this rank, and returns these vertices.
    fn place_own(&mut self) -> Vec<u32> {
        let (own, mut found) = (self.owners.own(), Vec::new());
        for (&v, place) in self.vertices.iter().zip(&mut self.places) {
            if own.contains(&(v as usize)) {
                *place = found.len() as u32;
                found.push(v);
            }
        }
        found
    }

    /// Returns the edges of some of the vertices that were given to the pull, in their order.
    ///
    /// # Cost
    /// O(edges + vertices log ranks).
    pub(crate) fn edges(&self, places: Range<usize>) -> DrawnEdges {
        let mut all = DrawnEdges::default();
        for at in places {
            let owner = self.owners.owner(self.vertices[at]);
            all.push_row(&self.of_ranks[owner], self.places[at] as usize);
        }
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ranks::{Letter, Sent};

    const EDGES: usize = 1000;

    /// The edges of a vertex: none of some, and repeated ones of others.
    fn drawn_of(v: u32) -> Vec<(u64, u32)> {
        (0..v % 4).map(|i| (u64::from(10 * v + i / 2), (v * 3 + i / 2) % 20)).collect()
    }

    fn draw(vertices: &[u32]) -> Result<DrawnEdges> {
        let mut drawn = DrawnEdges::default();
        for &v in vertices {
            for (position, source) in drawn_of(v) {
                drawn.positions.push(position);
                drawn.sources.push(source);
                drawn.stands_for.push(v as f32 + 0.5);
            }
            drawn.offsets.push(drawn.sources.len() as u64);
        }
        Ok(drawn)
    }

    fn begin(ranks: &Ranks, offsets: &[usize], has_positions: bool) -> EdgePulls {
        let bounds = Bounds { vertices: 20, edges: has_positions.then_some(EDGES) };
        EdgePulls::begin(ranks, offsets.to_vec(), bounds)
    }

    /// Runs `work` on each rank, and returns the results by rank.
    fn on_ranks<T: Send>(count: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let ranks = Ranks::threads(count).into_iter();
            let threads: Vec<_> = ranks.map(|ranks| scope.spawn(move || work(ranks))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// The vertices of a rank's frontier: repeated, own ones, and none in some pulls.
    fn frontier(rank: usize, pull: u64) -> Vec<u32> {
        (0..(rank + pull as usize) % 4 * 6).map(|i| ((i * 7 + rank * 5 + pull as usize * 3) % 20) as u32).collect()
    }

    #[test]
    fn each_rank_gets_the_edges_and_asks_for_each_vertex_once() {
        // Ranks without vertices are the first, the last, and between others.
        for offsets in [&[0, 7, 20][..], &[0, 0, 9, 9, 20], &[0, 20, 20]] {
            for has_positions in [false, true] {
                let count = offsets.len() - 1;
                let owner =
                    |v: u32| (0..count).find(|&r| (offsets[r]..offsets[r + 1]).contains(&(v as usize))).unwrap();
                let all_sent = on_ranks(count, |ranks| {
                    let (pulls, rank) = (begin(&ranks, offsets, has_positions), ranks.rank());
                    for number in 0..9 {
                        let vertices = frontier(rank, number);
                        let pulled = pulls.pull(number, vertices.clone(), draw).unwrap();
                        for places in [0..vertices.len(), vertices.len() / 3..vertices.len()] {
                            let mut want = draw(&vertices[places.clone()]).unwrap();
                            if !has_positions {
                                want.positions.clear();
                            }
                            assert_eq!(pulled.edges(places), want);
                        }
                        assert_eq!(pulled.rounds, 2);
                    }
                    ranks.sent()
                });
                let mut want = vec![vec![Sent::default(); count]; count];
                let mut send = |from: usize, to: usize, bytes: usize| {
                    want[from][to].messages += 1;
                    want[from][to].bytes += (size_of::<Letter>() + bytes) as u64;
                };
                for (number, rank) in (0..9).flat_map(|number| (0..count).map(move |rank| (number, rank))) {
                    let vertices: std::collections::BTreeSet<u32> = frontier(rank, number).into_iter().collect();
                    for to in (0..count).filter(|&to| to != rank) {
                        let asked: Vec<u32> = vertices.iter().copied().filter(|&v| owner(v) == to).collect();
                        send(rank, to, 4 * asked.len());
                        if !asked.is_empty() {
                            let edges: usize = asked.iter().map(|&v| drawn_of(v).len()).sum();
                            let edge_bytes = if has_positions { 12 } else { 4 };
                            send(to, rank, 8 * (asked.len() + 1) + 4 * asked.len() + edge_bytes * edges);
                        }
                    }
                }
                assert_eq!(all_sent, want, "{offsets:?}");
            }
        }
    }

    #[test]
    fn edges_of_own_vertices_need_no_letter() {
        on_ranks(2, |ranks| {
            let pulls = begin(&ranks, &[0, 9, 20], true);
            let vertices = vec![9 * ranks.rank() as u32 + 5, 9 * ranks.rank() as u32];
            let pulled = pulls.own(vertices.clone(), draw).unwrap();
            assert_eq!((pulled.edges(0..2), pulled.rounds), (draw(&vertices).unwrap(), 0));
            assert_eq!(ranks.sent(), [Sent::default(); 2]);
        });
    }

    #[test]
    fn letters_of_rows_and_of_edges_do_not_mix() {
        on_ranks(3, |ranks| {
            let first = begin(&ranks, &[0, 5, 9, 20], true);
            let second = begin(&ranks, &[0, 5, 9, 20], true);
            // Each rank is ahead in another series.
            let (ahead, behind) = if ranks.rank() == 1 { (&second, &first) } else { (&first, &second) };
            std::thread::scope(|scope| {
                for (pulls, turn) in [(ahead, 0), (behind, 10)] {
                    let ranks = &ranks;
                    scope.spawn(move || {
                        for number in 0..20 {
                            let vertices = frontier(ranks.rank(), number + turn);
                            let pulled = pulls.pull(number, vertices.clone(), draw).unwrap();
                            assert_eq!(pulled.edges(0..vertices.len()), draw(&vertices).unwrap());
                        }
                    });
                }
            });
        });
    }

    #[test]
    fn a_series_that_ends_wakes_the_thread_that_waits_in_it() {
        on_ranks(2, |ranks| {
            let (first, second) = (begin(&ranks, &[0, 9, 20], true), begin(&ranks, &[0, 9, 20], true));
            if ranks.is_first() {
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| first.pull(0, vec![10], draw).map(drop));
                    drop(first.ending());
                    assert!(matches!(waiting.join().unwrap(), Err(Error::WorkersGone)));
                });
            }
            // The other series goes on.
            let pulled = second.pull(0, vec![3, 10], draw).unwrap();
            assert_eq!(pulled.edges(0..2), draw(&[3, 10]).unwrap());
        });
    }

    /// Sends rank 1 these letters, which are of a pull in which it asks for edges of vertex 3, and returns its error.
    fn error_of(frontier: &[u8], drawn: Option<&[u8]>) -> String {
        let errors = on_ranks(2, |ranks| {
            let pulls = begin(&ranks, &[0, 9, 20], true);
            if ranks.is_first() {
                let letters = [(Subject::Frontier, Some(frontier)), (Subject::Drawn, drawn)];
                for (subject, content) in letters.into_iter().filter_map(|(subject, c)| Some((subject, c?))) {
                    pulls.series.send(1, (subject, 0), content.len(), std::iter::once(content));
                }
                return String::new();
            }
            match pulls.pull(0, vec![3], draw) {
                Err(error @ Error::WrongLetter { rank: 0, .. }) => error.to_string(),
                other => panic!("{:?}", other.map(drop)),
            }
        });
        errors[1].clone()
    }

    #[test]
    fn wrong_letters_are_errors() {
        let vertices = |list: &[u32]| -> Vec<u8> { cast_slice(list).to_vec() };
        assert!(error_of(&[1, 2, 3, 4, 5], None).contains("5 bytes are no list of vertices"));
        for v in [8, 20, u32::MAX] {
            let error = error_of(&vertices(&[12, v]), None);
            assert!(error.contains(&format!("rank 0 sent a wrong message: it asks for vertex {v}, which")), "{error}");
        }
        let answer = |offsets: [u64; 2], sources: &[u32], positions: &[u64]| -> Vec<u8> {
            let (offsets, sources): (&[u8], &[u8]) = (cast_slice(&offsets), cast_slice(sources));
            [offsets, cast_slice(&[1.0f32]), sources, cast_slice(positions)].concat()
        };
        let good = answer([0, 2], &[19, 0], &[999, 0]);
        for (drawn, want) in [
            (&good[..7], "another length"),
            (&good[..good.len() - 1], "another length"),
            (&[&good[..], &[0]].concat(), "another length"),
            (&answer([0, 3], &[19, 0], &[999, 0]), "another length"),
            (&answer([0, u64::MAX], &[19, 0], &[999, 0]), "another length"),
            (&answer([0, u64::MAX / 12], &[19, 0], &[999, 0]), "another length"),
            (&answer([1, 2], &[19, 0], &[999, 0]), "not in order"),
            (&answer([2, 0], &[19, 0], &[999, 0]), "not in order"),
            (&answer([0, 2], &[20, 0], &[999, 0]), "a vertex that the graph does not have"),
            (&answer([0, 2], &[19, 0], &[0, 1000]), "an edge that the graph does not have"),
        ] {
            let error = error_of(&[], Some(drawn));
            assert!(error.contains(want), "{error}, not {want}");
        }
    }

    #[test]
    fn a_rank_that_fails_wakes_those_that_wait_for_its_edges() {
        on_ranks(3, |ranks| {
            let pulls = begin(&ranks, &[0, 5, 9, 20], true);
            let wrong = || Error::WrongLetter { rank: 9, why: "it cannot draw".into() };
            let failed = pulls.pull(0, vec![0, 6, 10], |vertices| match ranks.rank() {
                1 => Err(wrong()),
                _ => draw(vertices),
            });
            let failed = failed.map(drop).unwrap_err();
            if ranks.rank() == 1 {
                assert_eq!(failed.to_string(), wrong().to_string());
                ranks.fail(&failed);
            } else {
                assert!(matches!(failed, Error::OtherRank { rank: 1, .. }), "{failed}");
            }
        });
    }
}
