//! The vertices of a batch and their local numbers.

/// Numbers vertices in the order in which they are first met. Its memory follows the number of vertices met, not that of
/// the graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// Open addressing with linear probing: a vertex in the upper half, its local number + 1 in the lower one, or 0 for
    /// an empty place. At most half of the places are taken.
    places: Vec<u64>,
    /// For each vertex of the graph, its local number + 1, or 0; empty if `places` is used. This is faster, and for
    /// batches that meet at least one in [`MOST_SPARSE`] vertices it takes no more memory.
    of_all: Vec<u32>,
    /// The vertices, by local number.
    vertices: Vec<u32>,
    /// How many vertices the batch before met.
    before: usize,
}

/// The most vertices of the graph for each vertex that a batch meets, for a table of all of them.
const MOST_SPARSE: usize = 8;

/// Vertices whose places are loaded together.
const AT_ONCE: usize = 64;

/// The fewest places.
const LEAST: usize = 1 << 6;

impl Table {
    /// Returns the vertices met so far.
    pub(super) fn vertices(&self) -> &[u32] {
        &self.vertices
    }

    /// Forgets all vertices, and returns them. The memory is kept, unless it is far more than these took.
    pub(super) fn take(&mut self) -> Vec<u32> {
        let vertices = self.vertices.clone();
        self.clear();
        vertices
    }

    /// Forgets all vertices, for a batch of a graph with this number of vertices.
    pub(super) fn begin(&mut self, vertices: usize) {
        self.clear();
        if vertices <= MOST_SPARSE * self.before.max(LEAST) {
            self.of_all.resize(vertices, 0);
            self.places = Vec::new();
        } else {
            self.of_all = Vec::new();
        }
    }

    /// Forgets all vertices. The memory is kept, unless it is far more than these took.
    pub(super) fn clear(&mut self) {
        if self.vertices.is_empty() {
            return; // It was cleared before: how many vertices it had is not known any more.
        }
        self.before = self.vertices.len();
        if !self.of_all.is_empty() {
            self.of_all.fill(0);
            self.vertices.clear();
            return;
        }
        if self.places.len() > 16 * LEAST.max(self.vertices.len()) {
            self.places = vec![0; places_for(self.vertices.len())];
            self.vertices = Vec::new();
        } else {
            self.places.fill(0);
            self.vertices.clear();
        }
    }

    /// Returns the local number of a vertex, if it was met.
    #[inline]
    pub(super) fn get(&self, vertex: u32) -> Option<u32> {
        if !self.of_all.is_empty() {
            return self.of_all[vertex as usize].checked_sub(1);
        }
        if self.places.is_empty() {
            return None;
        }
        self.find(vertex).ok()
    }

    /// Makes room for `more` vertices.
    pub(super) fn reserve(&mut self, more: usize) {
        if !self.of_all.is_empty() {
            return;
        }
        let needed = places_for(self.vertices.len() + more);
        if needed > self.places.len() {
            self.places = vec![0; needed];
            for (local, &vertex) in (0u32..).zip(&self.vertices) {
                let place = self.find(vertex).expect_err("a vertex is met once");
                self.places[place] = entry(vertex, local);
            }
        }
    }

    /// Returns the local number of a vertex, which gets one if it was not met before. There has to be room for it.
    #[inline]
    pub(super) fn number(&mut self, vertex: u32) -> u32 {
        if !self.of_all.is_empty() {
            return number_of(&mut self.of_all[vertex as usize], &mut self.vertices, vertex);
        }
        match self.find(vertex) {
            Ok(local) => local,
            Err(place) => {
                let local = self.vertices.len() as u32;
                self.vertices.push(vertex);
                self.places[place] = entry(vertex, local);
                local
            }
        }
    }

    /// Replaces vertices by their local numbers, which they get if they were not met before.
    pub(super) fn number_all(&mut self, vertices: &mut [u32]) {
        if !self.of_all.is_empty() {
            for vertex in vertices {
                *vertex = number_of(&mut self.of_all[*vertex as usize], &mut self.vertices, *vertex);
            }
            return;
        }
        for vertices in vertices.chunks_mut(AT_ONCE) {
            self.reserve(vertices.len());
            // None of these loads waits for another one, which is most of the time of a large table.
            let mut first_places = [0; AT_ONCE];
            for (entry, &vertex) in first_places.iter_mut().zip(&*vertices) {
                *entry = self.places[self.first_place(vertex)];
            }
            for (vertex, found) in vertices.iter_mut().zip(first_places) {
                let is_met = found as u32 > 0 && (found >> 32) as u32 == *vertex;
                *vertex = if is_met { found as u32 - 1 } else { self.number(*vertex) };
            }
        }
    }

    /// Returns the local number of a vertex, or the place for it.
    #[inline]
    fn find(&self, vertex: u32) -> Result<u32, usize> {
        let mask = self.places.len() - 1;
        let mut place = self.first_place(vertex);
        loop {
            match self.places[place] {
                0 => return Err(place),
                found if (found >> 32) as u32 == vertex => return Ok(found as u32 - 1),
                _ => place = (place + 1) & mask,
            }
        }
    }

    #[inline]
    fn first_place(&self, vertex: u32) -> usize {
        let hash = u64::from(vertex).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.places.len() - 1)
    }
}

/// Returns the local number of a vertex, whose entry in the table of all vertices is given.
#[inline]
fn number_of(entry: &mut u32, vertices: &mut Vec<u32>, vertex: u32) -> u32 {
    if *entry == 0 {
        vertices.push(vertex);
        *entry = vertices.len() as u32;
    }
    *entry - 1
}

/// Returns what a place holds for a vertex.
fn entry(vertex: u32, local: u32) -> u64 {
    u64::from(vertex) << 32 | u64::from(local + 1)
}

fn places_for(vertices: usize) -> usize {
    (2 * vertices).next_power_of_two().max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vertices_are_numbered_in_the_order_in_which_they_are_met() {
        let mut table = Table::default();
        assert_eq!(table.get(0), None);
        for round in 0..3u32 {
            let met: Vec<u32> = (0..1000).map(|i| (i * 7919 + round) % 613).collect();
            let mut want: Vec<u32> = Vec::new();
            for vertices in met.chunks(100) {
                table.reserve(vertices.len());
                for &vertex in vertices {
                    let number = want.iter().position(|&other| other == vertex).unwrap_or_else(|| {
                        want.push(vertex);
                        want.len() - 1
                    });
                    assert_eq!(table.number(vertex), number as u32);
                    assert_eq!(table.get(vertex), Some(number as u32));
                }
            }
            assert_eq!(table.vertices(), want);
            assert_eq!(table.get(613), None);
            assert_eq!(table.take(), want);
            assert!(table.vertices().is_empty());
            assert_eq!(table.get(want[0]), None);
        }
    }

    #[test]
    fn lists_are_numbered_as_their_vertices_are() {
        let mut tables = [Table::default(), Table::default(), Table::default()];
        tables[2].before = 997;
        tables[2].begin(997);
        assert_eq!(tables[2].of_all.len(), 997);
        for length in [0, 1, 63, 64, 65, 1000] {
            let mut list: Vec<u32> = (0..length).map(|i| (i * i + length) % 997).collect();
            let mut same = list.clone();
            tables[0].reserve(list.len());
            let want: Vec<u32> = list.iter().map(|&vertex| tables[0].number(vertex)).collect();
            tables[1].number_all(&mut list);
            assert_eq!(list, want);
            assert_eq!(tables[0].vertices(), tables[1].vertices());
            tables[2].number_all(&mut same);
            assert_eq!(same, want);
            assert!(want.iter().zip(tables[0].vertices()).all(|(_, &v)| tables[2].get(v) == tables[0].get(v)));
        }
    }

    #[test]
    fn memory_of_a_large_batch_is_given_back() {
        let mut table = Table::default();
        table.reserve(1 << 16);
        (0..1 << 16).for_each(|vertex| assert_eq!(table.number(vertex), vertex));
        table.take();
        table.clear();
        assert_eq!(table.places.len(), 1 << 17, "it is kept for the next batch");
        table.reserve(10);
        (0..10).for_each(|vertex| assert_eq!(table.number(vertex), vertex));
        table.take();
        assert_eq!(table.places.len(), LEAST);
    }
}
