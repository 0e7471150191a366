//! Live predictions: those of a graph some of whose features change.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Instant;

use fixedbitset::FixedBitSet;
use half::bf16;
use lapidary_kernels::{HostSlot, NoHostMemory, Shared, Slot, SpareArrays, StorageType};
use ndarray::{Array2, ArrayView2};
use rayon::prelude::*;

use super::Predictor;
use super::evaluation::{LOGITS, output_name};
use super::pass::{Pass, write_weights};
use super::stored_rows::{ChangedRows, StoredRows, replace_rows};
use crate::bind::watched;
use crate::dataset::{Arrays, Dataset, FeatureNorm};
use crate::error::{Error, Result};
use crate::graph::{Block, Graph, prefix_sum};
use crate::lower::{Batch, BatchSupply, Contents, FeatureData, FirstLevel, Gathered, Inputs, level_sizes};
use crate::program::{LevelSizes, Origin, Program, Stages, made_name};
use crate::runtime::{BatchShare, RunOptions, Session, SessionSpec, SharedBatch};
use crate::sample::{BatchKey, Fanout, Fanouts, MiniBatch, NeighborSampler, Sampler, Scratch};

/// Most vertices and edges of a run, so that its memory is bounded.
const MOST_EDGES: u64 = 1 << 22;
/// From this share of the vertices and edges on, a stage computes all rows, with edges that are made once: `1 / WHOLE`.
const WHOLE: u64 = 2;

/// The predictions for a graph some of whose features change, kept up to date.
///
/// [`Predictor::live`] runs a whole pass and keeps, on the host, what each layer reads of the one before. After a change, only
/// the rows that depend on it are computed again: with L layers, those of the vertices at most L edges away. The logits are
/// those of a whole pass up to rounding.
///
/// ```
/// use lapidary::ndarray::Array2;
/// use lapidary::{Dataset, Model, Trainer};
///
/// let data = Dataset::builtin("karate")?;
/// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
/// let predictor = Trainer::builder(&model, &data).build()?.predictor()?;
/// let mut live = predictor.live(&data)?;
/// let before = live.logits().clone();
/// let update = live.update(&[16], Array2::zeros((1, data.feature_width())).view())?;
/// assert!(update.vertices.contains(&16) && update.vertices.len() < 34);
/// assert_ne!(live.logits().row(16), before.row(16));
/// # Ok::<(), lapidary::Error>(())
/// ```
pub struct LivePredictions {
    predictor: Predictor,
    data: Dataset,
    /// Row u lists the vertices that read vertex u.
    readers: Graph,
    norm: FeatureNorm,
    /// The stages that have operations.
    stages: Vec<Stage>,
    session: Session,
    supply: BatchSupply,
    /// Rows of features that differ from those of the data, normalised.
    changed: HashMap<u32, Vec<f32>>,
    /// Whether a run reads features of vertices that did not change in this update.
    reads_earlier_changes: bool,
    /// Vertices whose features changed in an update that failed.
    stale: Vec<u32>,
    /// What the stages made, by number.
    made: Vec<StoredRows>,
    logits: Array2<f32>,
    outputs: BTreeMap<String, Array2<f32>>,
    scratch: Scratch,
    /// Memory of the rows that earlier runs have read.
    spare: SpareArrays,
}

/// Most arrays of rows that are kept between runs: features, and the matrices that a stage reads.
const MOST_ARRAYS: usize = 4;

/// What an update did.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The vertices whose predictions were computed again, ascending.
    pub vertices: Vec<u32>,
    /// Seconds of the update.
    pub seconds: f64,
}

/// A stage that has operations.
#[derive(Clone, Debug)]
struct Stage {
    /// The number of gathers over the graph before its results.
    gathers: usize,
    program: Program,
    /// The vertices of the first level. They are all vertices of the graph if the device computes in the memory of the host,
    /// which was not limited, and if the gathers read only what stages before made: such rows are read in place.
    first_level: FirstLevel,
    /// What it makes: the name in the program, and where it belongs.
    makes: Vec<(String, Place)>,
    /// What it reads of the graph if it computes all rows, once it has.
    whole: Option<OfGraph>,
}

/// What a run reads that only a change of the graph would change.
#[derive(Clone, Debug)]
struct OfGraph {
    sizes: LevelSizes,
    values: Vec<(Slot, HostSlot)>,
}

/// Where the rows that a stage makes belong.
#[derive(Clone, Debug)]
enum Place {
    Made(usize),
    Logits,
    Output(String),
}

impl fmt::Debug for LivePredictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { predictor, data, stages, .. } = self;
        let mut shown = f.debug_struct("LivePredictions");
        shown.field("predictor", predictor).field("data", &data.name()).field("stages", stages).finish_non_exhaustive()
    }
}

impl Predictor {
    /// Predicts for a dataset, and keeps what it takes to predict again after a change of some features.
    ///
    /// # Errors
    /// As [`Predictor::predict`]; [`Error::Value`] with several ranks, or if the model reads learned rows instead of features.
    /// # Cost
    /// A whole pass, which all devices run; updates run on the first one. On the host, each matrix that one layer makes and the
    /// next one reads, as it is stored on a device: `4 n d` bytes for `[n, d]` in f32. After updates that reach most of a graph,
    /// at most 64 MB of edges and weights for each layer as well.
    pub fn live(&self, data: &Dataset) -> Result<LivePredictions> {
        let refused = |option, value: &str, expected: &str| {
            Err(Error::Value { option, value: value.into(), expected: expected.into() })
        };
        if self.options.ranks.count() > 1 {
            return refused("ranks", &self.options.ranks.count().to_string(), "live predictions are on one rank");
        }
        if self.embedding().is_some() {
            return refused("weights", "embedding.weight", "the model reads learned rows, which no feature changes");
        }
        watched(data, || {
            let (pass, Stages { stages: programs, made, .. }) = Pass::in_stages(self, data)?;
            let mut session = pass.open(self, None)?;
            let mut prediction = pass.run(self, &mut session, Instant::now())?;
            drop(session);
            let kept = (0..made.len()).map(|number| {
                let made = prediction.outputs.remove(&made_name(number)).expect("it is an output of the pass");
                StoredRows::new(&made, self.dtype).map_err(no_memory)
            });
            let kept = kept.collect::<Result<_>>()?;
            let stages = programs.into_iter().enumerate().filter(|(_, program)| !program.ops().is_empty());
            let stages: Vec<Stage> =
                stages.map(|(gathers, program)| self.stage(gathers, program, made.len())).collect();
            let supply = BatchSupply::new(&pass.inputs, stages.iter().flat_map(|stage| stage.program.origins().keys()));
            let session = self.open_stages(&stages, supply.inputs(), None)?;
            let gathers_features =
                |stage: &Stage| stage.gathers > 0 && stage.program.origins().keys().any(is_row_of_features);
            let is_dense = matches!(supply.inputs().features, FeatureData::Dense { .. });
            let readers = match data.directed() {
                true => data.graph().transpose_without_permutation(),
                false => data.graph().clone(),
            };
            Ok(LivePredictions {
                predictor: self.clone(),
                data: data.clone(),
                readers,
                norm: self.feature_norm.unwrap_or_else(|| data.default_feature_norm()),
                session,
                supply,
                changed: HashMap::new(),
                reads_earlier_changes: is_dense && stages.iter().any(gathers_features),
                stale: Vec::new(),
                stages,
                made: kept,
                logits: prediction.logits,
                outputs: prediction.outputs,
                scratch: Scratch::default(),
                spare: SpareArrays::new(MOST_ARRAYS),
            })
        })
    }

    /// Describes a stage. `made` is the number of tensors that one stage makes and another one reads.
    fn stage(&self, gathers: usize, program: Program, made: usize) -> Stage {
        let outputs = self.outputs.iter().map(|output| (output_name(output), Place::Output(output.clone())));
        let all = (0..made).map(|number| (made_name(number), Place::Made(number)));
        let all = all.chain(outputs).chain([(LOGITS.to_string(), Place::Logits)]);
        let makes = all.filter(|(name, _)| program.outputs().contains_key(name)).collect();
        // What stages before made is there for all vertices. Plans count all of its rows.
        let is_there = |origin: &Origin| match origin {
            Origin::OfBatch(of, 0) => matches!(**of, Origin::Made(_)),
            _ => true,
        };
        let is_roomy = self.options.devices.in_place() && self.options.device_memory.is_none();
        let in_place = gathers > 0 && is_roomy && program.origins().keys().all(is_there);
        Stage {
            gathers,
            program,
            first_level: if in_place { FirstLevel::Graph } else { FirstLevel::Drawn },
            makes,
            whole: None,
        }
    }

    /// Opens the first device for the stages, in place of an old session if there is one.
    fn open_stages(&self, stages: &[Stage], inputs: &Inputs, old: Option<&mut Session>) -> Result<Session> {
        let options = RunOptions { devices: self.options.devices.first(), ..self.options.clone() };
        let programs: Vec<(&str, &Program)> = stages.iter().map(|stage| ("stage", &stage.program)).collect();
        let kept =
            stages.iter().enumerate().flat_map(|(phase, stage)| stage.makes.iter().map(move |(name, _)| (phase, name)));
        let keep: Vec<(usize, String)> = kept.map(|(phase, name)| (phase, name.clone())).collect();
        let others: Vec<[usize; 1]> = (1..stages.len()).map(|phase| [phase]).collect();
        let others: Vec<&[usize]> = others.iter().map(|phase| &phase[..]).collect();
        let spec = SessionSpec {
            programs: &programs,
            strips: 1,
            instead: &[],
            inputs,
            parts: std::iter::once(0..inputs.graph.vertex_count()).collect(),
            main: &[0],
            others: &others,
            repeats: true,
            seed: 0,
            keep: &keep,
            plans: None,
            levels: Some(LevelSizes::new(&[1, 1], &[[1, 0]], 1, 1)),
        };
        let session = match old {
            Some(old) => Session::open_in_place_of(old, &options, &spec)?,
            None => Session::open(&options, &spec)?,
        };
        write_weights(&session, self)?;
        Ok(session)
    }
}

impl LivePredictions {
    /// Returns the logits of every vertex, `[n, classes]`, in the order of the dataset.
    pub fn logits(&self) -> &Array2<f32> {
        &self.logits
    }

    /// Returns the outputs that [`Predictor::outputs`] requested, by name: `[n, width]`.
    pub fn outputs(&self) -> &BTreeMap<String, Array2<f32>> {
        &self.outputs
    }

    /// Replaces the features of some vertices, and predicts again what depends on them.
    ///
    /// # Shapes
    /// `features`: `[vertices, width]`, not normalised; also if those of the dataset are sparse.
    /// # Errors
    /// [`Error::Value`] for other shapes, and for a vertex that does not exist or is there twice; [`Error::Dataset`] for a
    /// number that is not finite: nothing has changed then. [`Error::Device`]; [`Error::DoesNotFit`] if not even one row fits
    /// the device; [`Error::Dataset`] if a file of the dataset has changed. Some predictions may be those before the update
    /// then; the next update, which may be of no vertices, computes them again.
    /// # Cost
    /// The kernels of the rows that change, a copy of the rows that they read, and O(n) if the features are sparse. On a CPU
    /// whose memory is not limited, gathers that read only what earlier layers made read it in place.
    pub fn update(&mut self, vertices: &[u32], features: ArrayView2<'_, f32>) -> Result<Update> {
        let start = Instant::now();
        let rows = self.checked(vertices, features)?;
        let data = self.data.clone();
        data.check_files()?;
        let failed_before = !self.stale.is_empty();
        self.changed.extend(vertices.iter().copied().zip(rows));
        self.stale.extend_from_slice(vertices);
        if failed_before {
            // The device may have stopped.
            self.session = self.predictor.open_stages(&self.stages, self.supply.inputs(), Some(&mut self.session))?;
            self.stages.iter_mut().for_each(|stage| stage.whole = None);
        }
        let vertices = watched(&data, || self.recompute())?;
        self.stale.clear();
        if !self.reads_earlier_changes {
            self.changed.clear();
        }
        Ok(Update { vertices, seconds: start.elapsed().as_secs_f64() })
    }

    /// Checks the arguments of an update. Returns the rows, normalised.
    fn checked(&self, vertices: &[u32], features: ArrayView2<'_, f32>) -> Result<Vec<Vec<f32>>> {
        let wrong = |option, value: String, expected: String| Err(Error::Value { option, value, expected });
        let (all, width) = (self.data.graph().vertex_count(), self.data.feature_width());
        if features.dim() != (vertices.len(), width) {
            let expected = format!("one row for each of the {} vertices, of {width} features", vertices.len());
            return wrong("features", format!("{:?}", features.dim()), expected);
        }
        if let Some(beyond) = vertices.iter().find(|&&v| v as usize >= all) {
            return wrong("vertices", beyond.to_string(), format!("vertices below {all}"));
        }
        let mut sorted = vertices.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong("vertices", twice[0].to_string(), "each vertex once".into());
        }
        if vertices.is_empty() {
            return Ok(Vec::new());
        }
        // As a dataset, the rows pass its checks.
        let alone = Graph::from_edges(vertices.len(), &[]).expect("a graph without edges");
        let rows = Dataset::from_arrays(Arrays::new(alone).name(self.data.name()).features(features.to_owned()))?;
        let rows = rows.features().expect("it has features");
        let rows = if self.norm == FeatureNorm::Row { rows.row_normalised() } else { rows.clone() };
        Ok(rows.values().chunks(width).map(<[f32]>::to_vec).collect())
    }

    /// Computes what depends on the vertices whose features changed. Returns them, ascending.
    fn recompute(&mut self) -> Result<Vec<u32>> {
        let mut rows = self.stale.clone();
        sort_unique(&mut rows);
        if let FeatureData::Sparse { width, .. } = self.supply.inputs().features {
            let features = self.sparse_rows(&rows, width);
            self.supply.set_features(features);
        }
        let mut gathers = 0;
        for phase in 0..self.stages.len() {
            for _ in gathers..self.stages[phase].gathers {
                rows = with_readers(&self.readers, &rows);
            }
            gathers = self.stages[phase].gathers;
            if self.takes_all(phase, &rows) {
                self.run(phase, &rows, true)?;
                continue;
            }
            let (mut rest, mut most) = (&rows[..], usize::MAX);
            while !rest.is_empty() {
                let (some, later) = rest.split_at(self.rows_of_a_run(rest).min(most));
                match self.run(phase, some, false) {
                    Err(Error::DoesNotFit { .. }) if some.len() > 1 => most = some.len() / 2,
                    done => {
                        done?;
                        rest = later;
                    }
                }
            }
        }
        Ok(rows)
    }

    /// Returns whether a stage that has to compute these rows computes all.
    fn takes_all(&self, phase: usize, rows: &[u32]) -> bool {
        let graph = self.data.graph();
        let all = (graph.vertex_count() + graph.edge_count()) as u64;
        let is_able = self.stages[phase].first_level == FirstLevel::Graph && all <= MOST_EDGES;
        is_able && WHOLE * rows.par_iter().map(|&v| size(graph, v)).sum::<u64>() >= all
    }

    /// Returns how many of these rows run together.
    fn rows_of_a_run(&self, rows: &[u32]) -> usize {
        let graph = self.data.graph();
        let sizes = rows.iter().scan(0, |total, &v| {
            *total += size(graph, v);
            Some(*total)
        });
        sizes.take_while(|&size| size <= MOST_EDGES).count().max(1)
    }

    /// Computes the rows of some vertices that a stage makes; with `all`, those of the others too, which are then dropped.
    fn run(&mut self, phase: usize, rows: &[u32], all: bool) -> Result<()> {
        let every: Vec<u32> = if all { (0..self.data.graph().vertex_count() as u32).collect() } else { Vec::new() };
        let computed = if all { &every[..] } else { rows };
        let known = self.stages[phase].whole.clone().filter(|_| all);
        let mut drawn = self.drawn(phase, computed, known.is_some())?;
        let of_graph = known.unwrap_or_else(|| {
            let first_level = self.stages[phase].first_level;
            OfGraph { sizes: level_sizes(self.supply.inputs(), &drawn, first_level), values: Vec::new() }
        });
        let mut spare = std::mem::take(&mut self.spare);
        let values = self.values(phase, &drawn, &of_graph.values, &mut spare);
        self.spare = spare;
        let values = values.map_err(|source| Error::Batch { stage: "gathering", batch: phase as u64 + 1, source })?;
        if all && self.stages[phase].whole.is_none() {
            self.stages[phase].whole = Some(OfGraph { values: self.of_graph(phase, &values), ..of_graph });
        }
        let sizes = of_graph.sizes;
        let share = BatchShare { sizes, vertices: std::mem::take(&mut drawn.vertices), values };
        self.scratch.take_back(drawn);
        self.session.run_batch(&[phase], &[], &[], SharedBatch { own: vec![share], sizes: vec![sizes] }, [false; 2])?;
        let rows = if all { ChangedRows::OfAll(rows) } else { ChangedRows::Alone(rows) };
        for (name, place) in &self.stages[phase].makes {
            let made = self.session.show(phase, name)?;
            let all = match place {
                Place::Made(number) => {
                    made.read(|bytes| self.made[*number].replace(rows, bytes));
                    continue;
                }
                Place::Logits => &mut self.logits,
                Place::Output(output) => self.outputs.get_mut(output).expect("the pass read it"),
            };
            let width = all.ncols();
            let all = all.as_slice_mut().expect("it is row-major");
            let dtype = self.predictor.dtype;
            made.read(|bytes| match dtype {
                StorageType::F32 => replace_rows(all, width, rows, bytemuck::cast_slice(bytes)),
                StorageType::Bf16 => {
                    let wide: Vec<f32> = bytemuck::cast_slice(bytes).iter().copied().map(bf16::to_f32).collect();
                    replace_rows(all, width, rows, &wide);
                }
            });
        }
        Ok(())
    }

    /// Returns those values of a run of a stage that only a change of the graph would change.
    fn of_graph(&self, phase: usize, values: &[(Slot, HostSlot)]) -> Vec<(Slot, HostSlot)> {
        let contents = self.session.batch_contents(&[phase]);
        let changes = |slot: Slot| {
            let of_batch =
                contents.iter().find(|(other, _)| *other == slot).and_then(|(_, contents)| contents.of_batch());
            of_batch
                .is_some_and(|(origin, _)| matches!(origin, Origin::Made(_) | Origin::Features | Origin::FeatureValues))
        };
        values.iter().filter(|(slot, _)| !changes(*slot)).cloned().collect()
    }

    /// Returns the in-edges of some vertices, if the stage gathers and they are not known.
    fn drawn(&mut self, phase: usize, rows: &[u32], known: bool) -> Result<MiniBatch> {
        let (graph, vertices, seeds) = (self.data.graph(), rows.to_vec(), rows.len());
        let Stage { gathers, first_level, .. } = self.stages[phase];
        if gathers == 0 || known {
            return Ok(MiniBatch { vertices, seeds, blocks: Vec::new(), edges: Vec::new(), stands_for: Vec::new() });
        }
        let (all, key) = (NeighborSampler::new(Fanouts(vec![Fanout::All])), BatchKey { seed: 0, epoch: 0, batch: 0 });
        let drawn = match first_level {
            FirstLevel::Drawn => all.sample(graph, rows, key, &mut self.scratch),
            FirstLevel::Graph => {
                let block = Block::of_vertices(graph, rows);
                let edges = match self.supply.inputs().edge_weights {
                    Some(_) => {
                        rows.par_iter().flat_map_iter(|&v| graph.edges(v as usize)).map(|edge| edge as u64).collect()
                    }
                    None => Vec::new(),
                };
                Ok(MiniBatch { vertices, seeds, blocks: vec![block], edges: vec![edges], stands_for: vec![Vec::new()] })
            }
        };
        Ok(drawn.map_err(crate::dataset::Error::from)?)
    }

    /// Returns what a run of a stage reads of these vertices. Some of it may be known.
    fn values(
        &self,
        phase: usize,
        drawn: &MiniBatch,
        known: &[(Slot, HostSlot)],
        spare: &mut SpareArrays,
    ) -> Gathered<Vec<(Slot, HostSlot)>> {
        let contents = self.session.batch_contents(&[phase]);
        let first_level = self.stages[phase].first_level;
        let mut batch = Batch::new(&self.supply, drawn).with_first_level(first_level);
        let reads =
            |of: &Origin| contents.iter().filter_map(|(_, contents)| contents.of_batch()).any(|(other, _)| other == of);
        if let FeatureData::Dense { data, width } = &self.supply.inputs().features
            && reads(&Origin::Features)
        {
            batch = batch.with_features(feature_rows((data, *width), &self.changed, &drawn.vertices, spare)?);
        }
        let value = |(slot, contents): (Slot, Contents)| {
            if let Some((_, value)) = known.iter().find(|(other, _)| *other == slot) {
                return Ok((slot, value.clone()));
            }
            let value = match contents.of_batch() {
                Some((&Origin::Made(number), 0)) if first_level == FirstLevel::Graph => self.made[number].all(),
                Some((&Origin::Made(number), _)) if drawn.seeds == self.data.graph().vertex_count() => {
                    self.made[number].all()
                }
                Some((&Origin::Made(number), 0)) => self.made[number].some(&drawn.vertices, spare)?,
                Some((&Origin::Made(number), _)) => self.made[number].some(&drawn.vertices[..drawn.seeds], spare)?,
                _ => batch.get(&contents)?,
            };
            Ok((slot, value))
        };
        contents.into_iter().map(value).collect()
    }

    /// Returns sparse features that have the rows of these vertices, which have changed, and no other cells.
    fn sparse_rows(&self, vertices: &[u32], width: usize) -> FeatureData {
        let mut indptr = vec![0u64; self.data.graph().vertex_count() + 1];
        let (mut indices, mut values) = (Vec::new(), Vec::new());
        for &v in vertices {
            let cells = self.changed[&v].iter().enumerate().filter(|(_, x)| **x != 0.0);
            let before = indices.len();
            for (column, &x) in cells {
                indices.push(column as u32);
                values.push(x);
            }
            indptr[v as usize + 1] = (indices.len() - before) as u64;
        }
        prefix_sum(&mut indptr);
        FeatureData::Sparse { indptr: indptr.into(), indices: indices.into(), values: values.into(), width }
    }
}

/// Returns the features of vertices: those of the data, or those that they were changed to.
fn feature_rows(
    (data, width): (&[f32], usize),
    changed: &HashMap<u32, Vec<f32>>,
    vertices: &[u32],
    spare: &mut SpareArrays,
) -> Gathered<Shared<u8>> {
    let mut rows = spare.take(vertices.len() * width * size_of::<f32>())?;
    rows.as_mut_slice::<f32>().par_chunks_mut(width).zip(vertices).for_each(|(to, v)| {
        to.copy_from_slice(changed.get(v).map_or(&data[*v as usize * width..][..width], |row| &row[..]));
    });
    Ok(spare.lend(rows))
}

/// Returns whether this origin is features of vertices.
fn is_row_of_features(origin: &Origin) -> bool {
    matches!(origin, Origin::OfBatch(of, _) if **of == Origin::Features)
}

fn no_memory(NoHostMemory { need_bytes }: NoHostMemory) -> Error {
    let source = Box::new(lapidary_kernels::Error::HostMemory { need_bytes });
    Error::Device { device: "host".into(), op: "keeping what the layers made".into(), source }
}

/// Returns the number of in-edges of a vertex, and 1 for itself.
fn size(graph: &Graph, v: u32) -> u64 {
    1 + graph.in_degree(v as usize)
}

/// Returns vertices and those that read them, ascending.
///
/// # Cost
/// O(vertices and their readers), and a bit for every vertex of the graph; O(r log r) for r readers if they are few.
fn with_readers(readers: &Graph, vertices: &[u32]) -> Vec<u32> {
    /// The bits of so many vertices cost as much as a reader in a list that is sorted.
    const BITS_A_READER: usize = 1024;
    let all = readers.vertex_count();
    let count: usize = vertices.par_iter().map(|&v| readers.in_degree(v as usize) as usize).sum();
    if count.saturating_mul(BITS_A_READER) < all {
        let of_some = vertices.iter().flat_map(|&v| readers.sources(v as usize).iter().copied());
        let mut some: Vec<u32> = of_some.chain(vertices.iter().copied()).collect();
        sort_unique(&mut some);
        return some;
    }
    let mut reads = FixedBitSet::with_capacity(all);
    for &v in vertices {
        reads.insert(v as usize);
        readers.sources(v as usize).iter().for_each(|&reader| reads.insert(reader as usize));
    }
    reads.ones().map(|v| v as u32).collect()
}

fn sort_unique(vertices: &mut Vec<u32>) {
    vertices.sort_unstable();
    vertices.dedup();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytesize::ByteSize;

    use super::FirstLevel::{Drawn, Graph};
    use super::*;
    use crate::model::{Model, ModelConfig};
    use crate::runtime::Devices;
    use crate::train::Trainer;

    #[test]
    fn stages_read_in_place_what_stages_before_made_on_a_cpu() {
        let data = Dataset::builtin("planted").unwrap();
        let widths = [data.feature_width(), 8, data.class_count()];
        let first_levels = |model: &Model, change: fn(Predictor) -> Predictor| -> Vec<FirstLevel> {
            let predictor = change(Trainer::builder(model, &data).build().unwrap().predictor().unwrap());
            predictor.live(&data).unwrap().stages.iter().map(|stage| stage.first_level).collect()
        };
        let (gcn, sage) = (Model::gcn(&widths), Model::sage(&[widths[0], 4 * widths[0], widths[2]]));
        assert_eq!(first_levels(&gcn, |predictor| predictor.devices(Devices::cpu())), [Drawn, Graph, Graph]);
        assert_eq!(first_levels(&gcn, |predictor| predictor.devices(Devices::sim(1))), [Drawn; 3]);
        let limited = |predictor: Predictor| predictor.devices(Devices::cpu()).device_memory(ByteSize::mib(64));
        assert_eq!(first_levels(&gcn, limited), [Drawn; 3]);
        // It is so wide that its first layer gathers features.
        let of_sage = first_levels(&sage, |predictor| predictor.devices(Devices::cpu()));
        assert_eq!(of_sage.last(), Some(&Graph), "{of_sage:?}");
        assert!(of_sage[..of_sage.len() - 1].iter().all(|level| *level == Drawn), "{of_sage:?}");
    }

    #[test]
    fn a_change_that_reaches_most_vertices_reads_edges_that_are_made_once() {
        let data = Dataset::builtin("planted").unwrap();
        let (n, width) = (data.graph().vertex_count(), data.feature_width());
        let starts = data.graph().indptr();
        let edges = |v: &u32| starts[*v as usize + 1] - starts[*v as usize];
        let mut most: Vec<u32> = (0..n as u32).collect();
        most.sort_by_key(|v| std::cmp::Reverse(edges(v)));
        most.truncate(n / 3);
        let crate::dataset::Features::Dense(dense) = data.features().unwrap() else { panic!("they are dense") };
        for name in ["gcn", "sage", "gin", "gat", "commnet", "resgcn"] {
            let mut features = Array2::from_shape_vec((n, width), dense.data().to_vec()).unwrap();
            let model = ModelConfig::new(name, &[width, 8, 8, data.class_count()]);
            let model = Model::from_config(model).unwrap();
            let trainer = Trainer::builder(&model, &data).devices(Devices::cpu()).build().unwrap();
            let predictor = trainer.predictor().unwrap().feature_norm(FeatureNorm::None);
            let mut live = predictor.live(&data).unwrap();
            for round in 0..3 {
                let rows = Array2::from_shape_fn((most.len(), width), |(v, c)| ((v * 7 + c + round) % 5) as f32 * 0.1);
                most.iter().zip(rows.rows()).for_each(|(&v, row)| features.row_mut(v as usize).assign(&row));
                let before = live.logits().clone();
                let update = live.update(&most, rows.view()).unwrap();
                let arrays = Arrays::new(data.graph().clone()).directed(data.directed()).features(features.clone());
                let want = predictor.predict(&Dataset::from_arrays(arrays).unwrap()).unwrap();
                let far = live.logits().iter().zip(&want).fold(0f32, |far, (a, b)| far.max((a - b).abs()));
                assert!(far < 1e-5, "{name}, round {round}: {far}");
                for v in (0..n).filter(|v| !update.vertices.contains(&(*v as u32))) {
                    assert_eq!(live.logits().row(v), before.row(v), "a row that does not depend on the change");
                }
            }
            let of_graph = live.stages.iter().filter(|stage| stage.first_level == Graph);
            assert!(of_graph.clone().count() > 0 && of_graph.clone().all(|stage| stage.whole.is_some()), "{name}");
        }
    }

    #[test]
    fn readers_are_found_by_bits_and_by_sorting() {
        // Vertex v reads its half. Few of many vertices are sorted, many are marked.
        let edges: Vec<(u32, u32)> = (1..5000u32).map(|v| (v / 2, v)).collect();
        let readers = crate::graph::Graph::from_edges(5000, &edges).unwrap().transpose_without_permutation();
        for count in [0, 1, 2, 700, 5000u32] {
            let vertices: Vec<u32> =
                (0..count).map(|v| v * 7 % 5000).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
            let mut want: Vec<u32> =
                vertices.iter().flat_map(|&v| [v, 2 * v, 2 * v + 1]).filter(|&v| v < 5000).collect();
            sort_unique(&mut want);
            assert_eq!(with_readers(&readers, &vertices), want, "{count}");
        }
    }
}
