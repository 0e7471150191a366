//! What the tests of all samplers share: a hostile graph, and checks of a batch.
#![allow(clippy::unwrap_used)]

use std::thread;

use super::{BatchKey, Fanouts, MiniBatch, SampleError, Sampler, Scratch};
use crate::graph::{Block, Graph};

/// A directed graph with a hub, repeated edges, self-loops and isolated vertices.
pub(super) fn hostile() -> Graph {
    let hub = (0..60u32).map(|u| (u, 7));
    let ring = (0..40u32).flat_map(|v| [(v, (v + 1) % 40), (v, (v + 1) % 40), (v, v), ((v * 5) % 40, v)]);
    Graph::from_edges(70, &hub.chain(ring).collect::<Vec<_>>()).unwrap()
}

/// Returns the edges of a block as pairs of local numbers: row, source.
pub(super) fn pairs(block: &Block) -> Vec<[usize; 2]> {
    let view = block.view();
    (0..block.row_count()).flat_map(|v| view.sources(v).iter().map(move |&u| [v, u as usize])).collect()
}

/// Asserts what holds of any batch: edges are those of the graph, in its order, and levels fit together.
pub(super) fn assert_valid(graph: &Graph, batch: &MiniBatch) {
    for ((block, edges), stands_for) in batch.blocks.iter().zip(&batch.edges).zip(&batch.stands_for) {
        assert_eq!([block.edge_count(); 2], [edges.len(), stands_for.len()]);
        assert!(stands_for.iter().all(|&count| count.is_finite() && count > 0.0), "{stands_for:?}");
        for ([v, u], &edge) in pairs(block).into_iter().zip(edges) {
            let [v, u] = [v, u].map(|local| batch.vertices[local]);
            assert!(graph.edges(v as usize).contains(&(edge as usize)));
            assert_eq!(graph.indices()[edge as usize], u);
        }
        assert!((0..block.row_count()).all(|v| edges[block.view().edges(v)].is_sorted()));
    }
    assert!(batch.blocks.windows(2).all(|pair| pair[0].row_count() == pair[1].own_sources()));
    assert_eq!(batch.blocks[0].own_sources(), batch.vertices.len());
    assert_eq!(batch.blocks.last().unwrap().row_count(), batch.seeds);
    let mut distinct = batch.vertices.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), batch.vertices.len());
}

/// Asserts that the edges of a row together stand for all edges of its vertex.
pub(super) fn assert_row_sums(graph: &Graph, batch: &MiniBatch) {
    for (block, stands_for) in batch.blocks.iter().zip(&batch.stands_for) {
        for v in 0..block.row_count() {
            let row = block.view().edges(v);
            let all: f32 = stands_for[row.clone()].iter().sum();
            let degree = graph.in_degree(batch.vertices[v] as usize) as f32;
            assert!(row.is_empty() || (all - degree).abs() < 1e-3 * degree, "{all} of {degree}");
        }
    }
}

/// Asserts that wrong seeds of the hostile graph are errors, and that a batch can be drawn after them.
pub(super) fn assert_rejects_wrong_seeds(sampler: &dyn Sampler) {
    let graph = hostile();
    let mut scratch = Scratch::default();
    let mut sample = |seeds: &[u32]| sampler.sample(&graph, seeds, BatchKey::default(), &mut scratch);
    assert_eq!(sample(&[1, 70]).unwrap_err(), SampleError::NoVertex { seed: 70, place: 1, vertices: 70 });
    assert_eq!(sample(&[4, 5, 4]).unwrap_err(), SampleError::Twice { seed: 4, place: 2 });
    assert_eq!(sample(&[4, 5]).unwrap().vertices[..2], [4, 5]);
    assert_eq!(sample(&[]).unwrap().seeds, 0);
}

/// Returns fan-outs, of which -1 is all.
pub(super) fn fan_outs(numbers: &[i32]) -> Fanouts {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(",").parse().unwrap()
}

/// Everything that a batch says.
type Contents = (Vec<u32>, Vec<(Vec<u64>, Vec<u32>)>, Vec<Vec<u64>>, Vec<Vec<u32>>);

fn contents(batch: MiniBatch) -> Contents {
    let blocks = batch.blocks.iter().map(|block| (block.indptr().to_vec(), block.indices().to_vec())).collect();
    let bits = |counts: &Vec<f32>| counts.iter().map(|count| count.to_bits()).collect();
    (batch.vertices, blocks, batch.edges, batch.stands_for.iter().map(bits).collect())
}

/// Asserts that 1, 2 and 8 threads that share the batches of an epoch draw the same ones.
pub(super) fn assert_same_on_threads(sampler: &dyn Sampler) {
    const BATCHES: u64 = 24;
    let graph = hostile();
    let of_thread = |first: u64, threads: u64| -> Vec<(u64, Contents)> {
        let mut scratch = Scratch::default();
        let draw = |batch: u64| {
            let mut seeds = vec![batch as u32, 7, 60];
            seeds.sort_unstable();
            seeds.dedup();
            let key = BatchKey { seed: 3, epoch: 1, batch };
            (batch, contents(sampler.sample(&graph, &seeds, key, &mut scratch).unwrap()))
        };
        (first..BATCHES).step_by(threads as usize).map(draw).collect()
    };
    let of_all = |threads: u64| {
        let mut all: Vec<(u64, Contents)> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || of_thread(first, threads))).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable_by_key(|(batch, _)| *batch);
        all
    };
    let alone = of_all(1);
    assert_eq!(alone.len() as u64, BATCHES);
    for threads in [2, 8] {
        assert!(of_all(threads) == alone, "{} on {threads} threads", sampler.name());
    }
}

/// Asserts that sums over the edges of the last block, each multiplied by what it stands for, are on average the sums
/// over the edges of the graph.
pub(super) fn assert_unbiased(sampler: &dyn Sampler, keys: u64) {
    let graph = hostile();
    let seeds: Vec<u32> = (0..10).chain([65]).collect();
    let value = |u: u32| f64::from(u % 5) - 1.0;
    let mut scratch = Scratch::default();
    // Of each seed, the sum of the sums and of their squares.
    let mut moments = vec![[0.0; 2]; seeds.len()];
    for batch in 0..keys {
        let key = BatchKey { seed: 11, epoch: 0, batch };
        let drawn = sampler.sample(&graph, &seeds, key, &mut scratch).unwrap();
        let (block, stands_for) = (drawn.blocks.last().unwrap(), drawn.stands_for.last().unwrap());
        for (row, [first, second]) in moments.iter_mut().enumerate() {
            let sources = block.view().sources(row).iter().map(|&u| drawn.vertices[u as usize]);
            let sum: f64 =
                sources.zip(&stands_for[block.view().edges(row)]).map(|(u, &count)| f64::from(count) * value(u)).sum();
            *first += sum;
            *second += sum * sum;
        }
    }
    for (&v, [first, second]) in seeds.iter().zip(moments) {
        let truth: f64 = graph.sources(v as usize).iter().map(|&u| value(u)).sum();
        let mean = first / keys as f64;
        let error = ((second / keys as f64 - mean * mean).max(0.0) / keys as f64).sqrt();
        assert!((mean - truth).abs() <= 4.5 * error + 1e-4, "vertex {v}: {mean} of {truth}, standard error {error}");
    }
}
