//! Checks that plans of several devices, which wait for each other, cannot deadlock.

use std::collections::{HashMap, VecDeque};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::{CheckError, Place};
use crate::memory::Plan;
use crate::tasks::{TaskGraph, TaskId, TensorId, TensorKind};

/// A fresh input of one device whose rows are published outputs of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The reading device and its fresh input.
    pub reader: (usize, TensorId),
    /// The writing devices and their published outputs.
    pub writers: Vec<(usize, TensorId)>,
}

/// Rows that an op of each reader copies out of other devices' memory.
///
/// A lender lends its rows when it comes to its own op that reads them, before it runs that op. It gives them up only
/// after all readers have copied them.
/// readers have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The reading devices and the outputs that they copy to.
    pub readers: Vec<(usize, TensorId)>,
    /// The lending devices and their outputs. A lender that also reads waits for its own loan, which changes nothing.
    pub lenders: Vec<(usize, TensorId)>,
}

/// One half of a step. In the first half the device makes room and loads; in the second half it runs the op.
#[derive(Clone, Copy)]
struct Node {
    device: usize,
    step: usize,
}

/// The steps of all devices, and which step waits for which.
struct Joint<'a> {
    devices: &'a [(&'a TaskGraph, &'a Plan)],
    /// The graph of waits. Nodes that belong to no device stand for "all have lent" and "all have read".
    waits: DiGraph<Option<Node>, ()>,
    /// By device and step, the node before the op and the node of the op.
    nodes: Vec<Vec<[NodeIndex; 2]>>,
    /// By device and op, the step.
    steps: HashMap<(usize, TaskId), usize>,
    loads: HashMap<(usize, TensorId), Vec<NodeIndex>>,
}

/// Checks that devices that run their plans and wait for each other's rows all finish.
///
/// A step waits for the step before it on its device. A step that loads a fresh input waits for the steps that make its
/// rows. An op that fetches waits until all its lenders have come to their lending steps. A lender that gives up its
/// rows waits for all their readers.
///
/// # Errors
/// [`CheckError::Deadlock`] with the steps of a cycle; [`CheckError::Exchange`] if an exchange is not between a fresh
/// input and published outputs, if a fetch is not between outputs, or if a lender's output does not have exactly one
/// reader.
/// # Cost
/// O(steps + loads + exchanges + readers + lenders).
pub fn check_joint(
    devices: &[(&TaskGraph, &Plan)],
    exchanges: &[Exchange],
    fetches: &[Fetch],
) -> Result<(), CheckError> {
    let mut joint = Joint::new(devices)?;
    exchanges.iter().try_for_each(|exchange| joint.exchange(exchange))?;
    fetches.iter().try_for_each(|fetch| joint.fetch(fetch))?;
    joint.check()
}

impl<'a> Joint<'a> {
    fn new(devices: &'a [(&'a TaskGraph, &'a Plan)]) -> Result<Self, CheckError> {
        let mut joint =
            Self { devices, waits: DiGraph::new(), nodes: Vec::new(), steps: HashMap::new(), loads: HashMap::new() };
        for (device, (graph, plan)) in devices.iter().enumerate() {
            let mut nodes: Vec<[NodeIndex; 2]> = Vec::new();
            for (step, planned) in plan.steps.iter().enumerate() {
                if planned.op.index() >= graph.ops().len() {
                    return Err(CheckError::Unknown { place: Place::Start, what: "op", id: planned.op.0 });
                }
                let [before, runs] = [(); 2].map(|()| joint.waits.add_node(Some(Node { device, step })));
                joint.waits.add_edge(before, runs, ());
                if let Some([_, last]) = nodes.last() {
                    joint.waits.add_edge(*last, before, ());
                }
                nodes.push([before, runs]);
                joint.steps.insert((device, planned.op), step);
                planned.load.iter().for_each(|t| joint.loads.entry((device, *t)).or_default().push(before));
            }
            joint.nodes.push(nodes);
        }
        Ok(joint)
    }

    fn exchange(&mut self, exchange: &Exchange) -> Result<(), CheckError> {
        self.expect(exchange.reader, |t| t.kind == TensorKind::Fresh, "which is no fresh input")?;
        for &writer in &exchange.writers {
            self.expect(writer, |t| t.publish, "which is no published output")?;
            let [_, makes] = self.nodes[writer.0][self.maker(writer)?];
            for load in self.loads.get(&exchange.reader).into_iter().flatten() {
                self.waits.add_edge(makes, *load, ());
            }
        }
        Ok(())
    }

    fn fetch(&mut self, fetch: &Fetch) -> Result<(), CheckError> {
        let is_output = |t: &crate::tasks::Tensor| t.kind == TensorKind::Local;
        let [all_lend, all_have_read] = [(); 2].map(|()| self.waits.add_node(None));
        for &reader in &fetch.readers {
            self.expect(reader, is_output, "which is no output")?;
            let [_, reads] = self.nodes[reader.0][self.maker(reader)?];
            self.waits.add_edge(all_lend, reads, ());
            self.waits.add_edge(reads, all_have_read, ());
        }
        for &lender in &fetch.lenders {
            self.expect(lender, is_output, "which is no output")?;
            let (device, tensor) = lender;
            let wrong = |why| CheckError::Exchange { device, tensor: tensor.0, why };
            let (graph, plan) = self.devices[device];
            let [op] = graph.consumers(tensor) else { return Err(wrong("which more or less than one op reads")) };
            let lends = *self.steps.get(&(device, *op)).ok_or_else(|| wrong("which its plan never lends"))?;
            let [arrives, _] = self.nodes[device][lends];
            self.waits.add_edge(arrives, all_lend, ());
            let gives_up = (lends + 1..plan.steps.len()).find(|&step| plan.steps[step].evict.contains(&tensor));
            if let Some(step) = gives_up {
                let [before, _] = self.nodes[device][step];
                self.waits.add_edge(all_have_read, before, ());
            }
        }
        Ok(())
    }

    /// Returns the step that makes an output.
    fn maker(&self, (device, tensor): (usize, TensorId)) -> Result<usize, CheckError> {
        let op = self.devices[device].0.producer(tensor);
        let step = op.and_then(|op| self.steps.get(&(device, op)).copied());
        step.ok_or(CheckError::Exchange { device, tensor: tensor.0, why: "which its plan never makes" })
    }

    fn expect(
        &self,
        (device, tensor): (usize, TensorId),
        is_right: impl Fn(&crate::tasks::Tensor) -> bool,
        why: &'static str,
    ) -> Result<(), CheckError> {
        let wrong = |why| Err(CheckError::Exchange { device, tensor: tensor.0, why });
        match self.devices.get(device).map(|(graph, _)| graph.tensors().get(tensor.index())) {
            None => wrong("but there is no such device"),
            Some(None) => wrong("but there is no such tensor"),
            Some(Some(found)) if !is_right(found) => wrong(why),
            Some(Some(_)) => Ok(()),
        }
    }

    fn check(&self) -> Result<(), CheckError> {
        let parts = kosaraju_scc(&self.waits).into_iter().filter(|part| part.len() > 1);
        let Some(part) = parts.min_by_key(|part| part.iter().min().copied()) else { return Ok(()) };
        let name = |node: NodeIndex| {
            let Node { device, step } = self.waits[node]?;
            let (graph, plan) = self.devices[device];
            Some(format!("device {device} step {step} (op `{}`)", graph.op(plan.steps[step].op).name))
        };
        let mut steps: Vec<String> = cycle(&self.waits, &part).into_iter().filter_map(name).collect();
        steps.dedup();
        Err(CheckError::Deadlock { steps })
    }
}

/// Returns a shortest cycle through the first node of a strongly connected component.
fn cycle(joint: &DiGraph<Option<Node>, ()>, part: &[NodeIndex]) -> Vec<NodeIndex> {
    let first = *part.iter().min().expect("a part has nodes");
    let mut before: HashMap<NodeIndex, NodeIndex> = HashMap::new();
    let mut queue = VecDeque::from([first]);
    while let Some(node) = queue.pop_front() {
        let mut next: Vec<NodeIndex> = joint.neighbors(node).filter(|n| part.contains(n)).collect();
        next.sort_unstable();
        for after in next {
            if after == first {
                let mut cycle = vec![node];
                while cycle[cycle.len() - 1] != first {
                    cycle.push(before[&cycle[cycle.len() - 1]]);
                }
                cycle.reverse();
                return cycle;
            }
            before.entry(after).or_insert_with(|| {
                queue.push_back(after);
                node
            });
        }
    }
    unreachable!("every node of a strongly connected part is on a cycle")
}
