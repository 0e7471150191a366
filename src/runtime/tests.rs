//! Fault injection: every device call that allocates, frees, copies, lends, fetches or computes fails in turn, as an
//! error and as a panic. Also runs of corrupted plans.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use bytesize::ByteSize;
use lapidary_kernels::{
    Call, Device, Error as DeviceError, Event, HostSlot, Lane, Lent, Mat, SimDevice, SimSpeed, Slot, Span, StorageType,
};
use ndarray::Array2;

use super::session::{Session, SessionSpec, Surroundings};
use super::{Devices, IdleDevice, RunOptions};
use crate::bind::{bind, feature_kind, label_kind};
use crate::dataset::{Dataset, FeatureNorm};
use crate::error::{Error, Result};
use crate::lower::{Inputs, SumMode};
use crate::model::Model;
use crate::plan::{DeviceBudget, ExchangePath, Layout, Method};
use crate::program::{Passes, Program, Recompute, Strips};
use crate::ranks::Ranks;
use crate::train::{Adam, DecayLayers, EpochSpec, Trainer, TrainingProgram, training_program};

const DEVICES: usize = 3;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Error,
    Panic,
}

/// A simulated device, one of whose calls fails.
struct Faulty {
    inner: SimDevice,
    /// Number of calls before the failing one, of all devices together.
    left: Arc<AtomicI64>,
    fault: Fault,
    /// Bytes copied to the host, recorded at each query of the counters.
    to_host: Arc<Mutex<Vec<u64>>>,
}

impl Faulty {
    fn call<T>(&self, call: impl FnOnce() -> lapidary_kernels::Result<T>) -> lapidary_kernels::Result<T> {
        if self.left.fetch_sub(1, Ordering::SeqCst) != 0 {
            return call();
        }
        assert!(self.fault == Fault::Error, "injected");
        Err(DeviceError::Panicked { message: "injected".into() })
    }
}

impl Device for Faulty {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn alloc(&self, slot: Slot, bytes: u64) -> lapidary_kernels::Result<()> {
        self.call(|| self.inner.alloc(slot, bytes))
    }
    fn free(&self, slot: Slot) -> lapidary_kernels::Result<()> {
        self.call(|| self.inner.free(slot))
    }
    fn rename(&self, from: Slot, to: Slot) -> lapidary_kernels::Result<()> {
        self.call(|| self.inner.rename(from, to))
    }
    fn share(&self, slot: Slot) -> lapidary_kernels::Result<Option<HostSlot>> {
        self.inner.share(slot)
    }
    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, after: &[Event]) -> lapidary_kernels::Result<Event> {
        self.call(|| self.inner.copy_in(lane, dst, src, after))
    }
    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, after: &[Event]) -> lapidary_kernels::Result<Event> {
        self.call(|| self.inner.copy_out(lane, src, dst, after))
    }
    fn lend(&self, slot: Slot) -> lapidary_kernels::Result<Lent> {
        self.call(|| self.inner.lend(slot))
    }
    fn fetch(
        &self,
        lane: Lane,
        rows: Slot,
        out: Mat,
        from: &[(Lent, usize)],
        after: &[Event],
    ) -> lapidary_kernels::Result<Event> {
        self.call(|| self.inner.fetch(lane, rows, out, from, after))
    }
    fn launch(&self, lane: Lane, call: &Call, after: &[Event]) -> lapidary_kernels::Result<Event> {
        self.call(|| self.inner.launch(lane, call, after))
    }
    fn wait(&self, event: Event) -> lapidary_kernels::Result<()> {
        self.inner.wait(event)
    }
    fn record(&self, on: bool) {
        self.inner.record(on);
    }
    fn take_spans(&self) -> Vec<Span> {
        self.inner.take_spans()
    }
    fn copied_bytes(&self) -> [u64; 2] {
        let copied = self.inner.copied_bytes();
        self.to_host.lock().expect("nobody panics with it").push(copied[1]);
        copied
    }
    fn fetched_bytes(&self) -> u64 {
        self.inner.fetched_bytes()
    }
    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }
    fn used_bytes(&self) -> u64 {
        self.inner.used_bytes()
    }
    fn peak_bytes(&self) -> u64 {
        self.inner.peak_bytes()
    }
}

fn programs(data: &Dataset) -> (Program, Program) {
    let model = Model::gcn(&[data.feature_width(), 4, data.class_count()]).dropout(0.5);
    let spec = EpochSpec {
        model: &model,
        features: feature_kind(data, false).expect("there are features"),
        labels: label_kind(data),
        vertices: data.graph().vertex_count() as u64,
        edges: data.graph().edge_count() as u64,
        optimizer: &Adam::new(0.01).into(),
        decay: DecayLayers::All,
        weighted_classes: false,
        passes: Passes::ALL,
        recompute: Recompute::Never,
        strips: Strips::Exactly(1),
        parts: 1,
        dtype: StorageType::F32,
        keeps_gradients: false,
        batches: None,
    };
    let TrainingProgram { program, evaluation, .. } = training_program(&spec).expect("it is built in");
    (program, evaluation)
}

fn budgets(capacity_bytes: u64) -> Vec<DeviceBudget> {
    let budget = |i: usize| DeviceBudget { name: format!("sim:{i}"), capacity_bytes, in_place: false };
    (0..DEVICES).map(budget).collect()
}

fn job<'a>(programs: &'a [(&'a str, &'a Program)], inputs: &'a Inputs) -> SessionSpec<'a> {
    let parts = vec![0..10, 10..20, 20..34];
    SessionSpec {
        programs,
        strips: 1,
        instead: &[],
        inputs,
        parts,
        main: &[0, 1],
        others: &[],
        repeats: true,
        seed: 0,
        keep: &[],
        plans: None,
        levels: None,
    }
}

const PATHS: [ExchangePath; 3] = [ExchangePath::Host, ExchangePath::Peer, ExchangePath::Staged];

/// Runs two epochs on devices of which call number `k` fails. No call fails if `k` is negative.
fn run(inputs: &Inputs, programs: &(Program, Program), path: ExchangePath, k: i64, fault: Fault) -> Result<()> {
    let programs = [("train", &programs.0), ("evaluate", &programs.1)];
    let job = job(&programs, inputs);
    let left = Arc::new(AtomicI64::new(k));
    let open = |budgets: &[DeviceBudget]| {
        let device = |budget: &DeviceBudget| -> Box<dyn Device> {
            let inner = SimDevice::new(
                &budget.name,
                std::num::NonZeroUsize::new(1),
                budget.capacity_bytes,
                SimSpeed::default(),
            );
            let inner = inner.expect("there are threads");
            Box::new(Faulty { inner, left: left.clone(), fault, to_host: Arc::default() })
        };
        Ok(budgets.iter().map(device).map(IdleDevice::from).collect())
    };
    let method = Method { policy: crate::runtime::MemoryPolicy::Lru, ..Method::default() };
    let mut session = Session::open_on(alone(budgets(9_000), path), method, &job, open)?;
    assert_eq!(session.tiles(), 1, "parts that are cut go through the host");
    for _ in 0..2 {
        let done = session.run(&[0, 1], &[(0, "loss")], &[], false)?;
        let [measured, planned] = done.bytes_between;
        assert!(measured == planned && (measured > 0) == (path != ExchangePath::Host), "{measured}, not {planned}");
    }
    Ok(())
}

fn alone(budgets: Vec<DeviceBudget>, path: ExchangePath) -> Surroundings {
    let layouts = vec![Layout { path, ..Layout::from(1) }];
    let sums = SumMode::Parts;
    Surroundings { budgets, layouts, sums, ranks: Ranks::alone(), hosts: Vec::new(), profile: "h200".into() }
}

fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

#[test]
fn every_call_fails_in_turn_and_nothing_hangs_or_leaks() {
    let data = Dataset::builtin("karate").expect("it is built in");
    let inputs = bind(&data, FeatureNorm::None, false, false).expect("there are features");
    let programs = programs(&data);
    let every = PATHS.map(|path| [Fault::Error, Fault::Panic].map(|fault| (path, fault)));
    for (path, _) in every.concat() {
        run(&inputs, &programs, path, -1, Fault::Error).expect("without a fault it runs");
    }
    let threads = thread_count();
    for (path, fault) in every.concat() {
        // Neighbouring calls are similar, so only the first hundred and then every seventh call fail.
        let mut k = 0;
        loop {
            let error = match run(&inputs, &programs, path, k, fault) {
                Ok(()) => break,
                Err(error) => error,
            };
            let Error::Device { device, op, source } = &error else { panic!("call {k}, {path:?}, {fault:?}: {error}") };
            assert!(device.contains("sim:") && device.contains("part"), "call {k}: {device}");
            assert!(!op.is_empty() && source.to_string().contains("injected"), "call {k}: {op}: {source}");
            k += if k < 100 { 1 } else { 7 };
        }
        assert!(k > 300, "only {k} calls were made");
    }
    // Other tests of this process may have threads of their own.
    assert!(thread_count() <= threads + 8, "{} threads, {threads} before", thread_count());
}

/// Runs the same under a scheduler that decides at each lock, message and thread who goes on. It reports when all threads
/// wait. Many orders are tried: at random, and with few changes of priority, which find what depends on one rare change.
/// The scheduler takes any panic for a failure of the test, so none is injected.
#[cfg(shuttle)]
#[test]
fn no_order_of_the_threads_hangs_or_changes_an_error() {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};

    let orders: usize = std::env::var("LAPIDARY_ORDERS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let data = Dataset::builtin("karate").expect("it is built in");
    let inputs = Arc::new(bind(&data, FeatureNorm::None, false, false).expect("there are features"));
    let programs = Arc::new(programs(&data));
    let mut config = shuttle::Config::new();
    config.stack_size = 8 << 20;
    config.max_steps = shuttle::MaxSteps::FailAfter(10_000_000);
    config.failure_persistence = shuttle::FailurePersistence::None;
    let mut runs = 0;
    for path in PATHS {
        // No fault, then faults at the start, in the middle and late.
        for k in [-1, 0, 7, 20, 60, 100, 133, 170, 210, 260] {
            let (inputs, programs) = (inputs.clone(), programs.clone());
            let once = move || match run(&inputs, &programs, path, k, Fault::Error) {
                Ok(()) => assert!(k < 0, "call {k} did not fail"),
                Err(Error::Device { source, .. }) => assert!(source.to_string().contains("injected"), "{source}"),
                Err(other) => panic!("call {k}, {path:?}: {other}"),
            };
            runs += shuttle::Runner::new(RandomScheduler::new(orders), config.clone()).run(once.clone());
            runs += shuttle::Runner::new(PctScheduler::new(3, orders), config.clone()).run(once);
        }
    }
    println!("{runs} orders");
}

#[test]
fn a_plan_that_was_corrupted_fails_the_run() {
    let data = Dataset::builtin("karate").expect("it is built in");
    let inputs = bind(&data, FeatureNorm::None, false, false).expect("there are features");
    let programs = programs(&data);
    let programs = [("train", &programs.0), ("evaluate", &programs.1)];
    let job = job(&programs, &inputs);
    let open = |budgets: &[DeviceBudget]| Devices::parse("sim:3").expect("it is one").open(budgets);
    type Corrupt = fn(&mut crate::plan::Script);
    let corruptions: [(&str, Corrupt); 3] = [
        ("a load is left out", |script| {
            let action = script.actions.iter_mut().find(|action| !action.load.is_empty()).expect("something is loaded");
            action.load.clear();
        }),
        ("an eviction is left out", |script| {
            script.actions.iter_mut().for_each(|action| action.evict.clear());
        }),
        ("less is held than is needed", |script| script.peak_bytes /= 2),
    ];
    for (what, corrupt) in corruptions {
        let method = Method { policy: crate::runtime::MemoryPolicy::Lru, ..Method::default() };
        let mut session =
            Session::open_on(alone(budgets(9_000), ExchangePath::Host), method, &job, open).expect("it fits");
        session.corrupt_main(1, corrupt);
        let error = session.run(&[0, 1], &[(0, "loss")], &[], false).expect_err(what);
        assert!(matches!(&error, Error::Device { device, .. } if device.contains("sim:1")), "{what}: {error}");
        let after = session.run(&[0, 1], &[(0, "loss")], &[], false).expect_err("the workers are gone");
        assert!(matches!(after, Error::WorkersGone), "{what}: {after}");
    }
}

#[test]
fn what_only_the_setup_reads_is_not_copied_to_the_host() {
    let data = Dataset::builtin("planted").expect("it is built in");
    let inputs = bind(&data, FeatureNorm::None, false, false).expect("there are features");
    let programs = programs(&data);
    let programs = [("train", &programs.0), ("evaluate", &programs.1)];
    let whole = 0..data.graph().vertex_count();
    let job = SessionSpec { parts: vec![whole], ..job(&programs, &inputs) };
    let to_host = Arc::default();
    let open = |budgets: &[DeviceBudget]| -> Result<Vec<IdleDevice>> {
        let inner = SimDevice::new("sim:0", None, budgets[0].capacity_bytes, SimSpeed::default());
        let (inner, left) = (inner.expect("there are threads"), Arc::new(AtomicI64::new(-1)));
        let device: Box<dyn Device> =
            Box::new(Faulty { inner, left, fault: Fault::Error, to_host: Arc::clone(&to_host) });
        Ok(vec![device.into()])
    };
    let budgets = budgets(1 << 30)[..1].to_vec();
    let mut session =
        Session::open_on(alone(budgets, ExchangePath::Host), Method::default(), &job, open).expect("it fits");
    session.run(&[0, 1], &[(0, "loss")], &[], false).expect("it runs");
    // The counters are queried before and after the actions of the setup, and before and after those of the epoch.
    let [before, made, entered, _] = to_host.lock().expect("nobody panics with it")[..] else {
        panic!("two scripts ran")
    };
    assert!(made > before, "A X is made once and published");
    assert_eq!(made, entered, "X scaled by the degrees is of no use to the epochs");
}

#[test]
fn a_session_computes_on_the_devices_of_the_one_before() {
    let data = Dataset::builtin("planted").expect("it is built in");
    let inputs = bind(&data, FeatureNorm::None, false, false).expect("there are features");
    let programs = programs(&data);
    let programs = [("train", &programs.0), ("evaluate", &programs.1)];
    let whole = 0..data.graph().vertex_count();
    let job = SessionSpec { parts: vec![whole], ..job(&programs, &inputs) };
    let options = RunOptions::default();
    let run = |session: &mut Session| {
        let done = session.run(&[0, 1], &[(0, "loss")], &[], false).expect("it runs");
        done.metric::<f64>(0)
    };
    let mut first = Session::open(&options, &job).expect("it fits");
    let want = run(&mut first);
    let (plans, idle) = first.into_plans_and_devices();
    assert!(idle.len() == 1 && idle[0].device.used_bytes() == 0);
    let peak = idle[0].device.peak_bytes();
    // An empty slot shows whether it is the same device, and is not in the way.
    let mark = Slot(1_000_000);
    idle[0].device.alloc(mark, 0).expect("there is room");
    let mut second = Session::open_again(&options, &SessionSpec { plans: Some(&plans), ..job }, idle).expect("it fits");
    assert!(second.took_plans() && run(&mut second) == want);
    let (_, idle) = second.into_plans_and_devices();
    assert!(idle[0].device.free(mark).is_ok() && idle[0].device.peak_bytes() == peak);
}

#[test]
fn what_a_failed_live_update_leaves_the_next_one_computes() {
    let data = Dataset::builtin("karate").expect("it is built in");
    let width = data.feature_width();
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let of_devices = left.clone();
    let devices = Devices::custom("faulty", 1, ByteSize::mib(1), move |_, capacity_bytes| {
        let inner = SimDevice::new("faulty", None, capacity_bytes, SimSpeed::default())?;
        let left = of_devices.clone();
        Ok(Box::new(Faulty { inner, left, fault: Fault::Error, to_host: Arc::default() }))
    });
    let trainer = Trainer::builder(&Model::gcn(&[width, 8, data.class_count()]), &data).build();
    let predictor = trainer.and_then(|trainer| trainer.predictor()).expect("it fits").devices(devices);
    let [mut live, mut whole] = [(); 2].map(|()| predictor.live(&data).expect("no call fails"));
    for call in 0.. {
        let rows = Array2::from_elem((1, width), 0.1 * (1 + call % 7) as f32);
        left.store(call, Ordering::Relaxed);
        let failed = live.update(&[16], rows.view()).is_err();
        left.store(i64::MAX, Ordering::Relaxed);
        if failed {
            let update = live.update(&[], Array2::zeros((0, width)).view()).expect("the device works again");
            assert!(update.vertices.contains(&16), "call {call}");
        }
        whole.update(&[16], rows.view()).expect("no call fails");
        assert_eq!(live.logits(), whole.logits(), "call {call}");
        if !failed {
            assert!(call > 5, "only {call} calls");
            break;
        }
    }
}

#[test]
fn a_device_that_failed_is_not_used_again() {
    let data = Dataset::builtin("karate").expect("it is built in");
    let inputs = bind(&data, FeatureNorm::None, false, false).expect("there are features");
    let programs = programs(&data);
    let programs = [("train", &programs.0), ("evaluate", &programs.1)];
    let job = job(&programs, &inputs);
    let left = Arc::new(AtomicI64::new(-1));
    let open = |budgets: &[DeviceBudget]| {
        let device = |budget: &DeviceBudget| -> Box<dyn Device> {
            let inner = SimDevice::new(&budget.name, None, budget.capacity_bytes, SimSpeed::default());
            let (inner, left) = (inner.expect("there are threads"), left.clone());
            Box::new(Faulty { inner, left, fault: Fault::Error, to_host: Arc::default() })
        };
        Ok(budgets.iter().map(device).map(IdleDevice::from).collect())
    };
    let surroundings = alone(budgets(1 << 20), ExchangePath::Host);
    let mut session = Session::open_on(surroundings, Method::default(), &job, open).expect("it fits");
    session.run(&[0, 1], &[], &[], false).expect("no call fails");
    left.store(0, Ordering::Relaxed);
    let (_, idle) = session.into_plans_and_devices();
    assert_eq!(idle.len(), DEVICES - 1, "one could not free its memory");
    assert!(idle.iter().all(|idle| idle.device.used_bytes() == 0));
}
