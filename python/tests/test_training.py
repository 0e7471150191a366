"""Training, trainers, predictors and checkpoints."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Example, make_example, short_run

import lapidary
from lapidary import _settings


@pytest.fixture
def data(example: Example) -> lapidary.Dataset:
    return lapidary.dataset((example.indptr, example.indices), **example.given)


def test_a_run_has_accuracies_and_predictions(data: lapidary.Dataset, example: Example) -> None:
    run = lapidary.train(data, hidden=8, epochs=60, progress=False)
    assert run.test_accuracy > 0.9 and run.val_accuracy > 0.9 and run.train_accuracy > 0.9
    assert [record["epoch"] for record in run.history] == list(range(1, 61))
    assert {"loss", "val_accuracy", "seconds"} <= run.history[0].keys()
    best = max(record["val_accuracy"] for record in run.history)
    assert run.history[run.best_epoch - 1]["val_accuracy"] == best == run.val_accuracy
    predicted, shares, embedded = run.predict(), run.predict_proba(), run.embed()
    assert (predicted.shape, predicted.dtype.kind, embedded.shape) == ((60,), "i", (60, 8))
    assert (shares.dtype, shares.shape) == (np.float32, (60, 2))
    assert np.allclose(shares.sum(axis=1), 1) and (shares.argmax(axis=1) == predicted).all()
    assert np.mean(predicted[example.test] == example.labels[example.test]) == run.test_accuracy
    assert run.predictor.evaluate(data) == (run.train_accuracy, run.val_accuracy, run.test_accuracy)
    assert "best epoch" in repr(run) and "test" in repr(run)


def test_predictions_of_another_graph(data: lapidary.Dataset) -> None:
    run = lapidary.train(data, hidden=8, epochs=60, progress=False)
    unseen = make_example(vertices=44, seed=9)
    graph = lapidary.dataset((unseen.indptr, unseen.indices), features=unseen.features)
    assert np.mean(run.predict(graph) == unseen.labels) > 0.7
    assert (run.predict_proba(graph).shape, run.embed(graph).shape) == ((44, 2), (44, 8))
    logits = run.predictor.logits(graph)
    assert (logits.argmax(axis=1) == run.predict(graph)).all()


def test_a_table_of_predictions(data: lapidary.Dataset, example: Example) -> None:
    pytest.importorskip("pandas")
    run = short_run(data)
    table = run.predictions()
    assert list(table.columns) == ["vertex", "prediction", "probability"]
    assert (table["prediction"] == run.predict()).all() and (table["vertex"] == np.arange(60)).all()
    assert np.allclose(table["probability"], run.predict_proba().max(axis=1))
    texts = np.array(["even", "odd"])[example.labels]
    named = lapidary.dataset((example.indptr, example.indices), **{**example.given, "labels": texts})
    assert (short_run(named).predictions()["prediction"] == np.array(["even", "odd"])[run.predict()]).all()


@pytest.mark.parametrize("model", ["gcn", "gin", "commnet", "resgcn", "sage", "graphconv", "gat", "gatv2"])
def test_every_model_goes_through_a_checkpoint(model: str, data: lapidary.Dataset, tmp_path: Path) -> None:
    options = {"heads": 2} if model.startswith("gat") else {}
    run = short_run(data, model=model, hidden=4, **options)
    run.save(tmp_path / "run")
    loaded = lapidary.Predictor.load(tmp_path / "run", devices="cpu")
    assert (loaded.model, loaded.widths[0]) == (model, 6)
    assert (loaded.logits(data) == run.predictor.logits(data)).all()
    assert {name: weight.tolist() for name, weight in loaded.weights().items()} == {
        name: weight.tolist() for name, weight in run.predictor.weights().items()
    }


def test_a_checkpoint_keeps_names_of_classes(example: Example, tmp_path: Path) -> None:
    labels = np.array(["even", "odd"])[example.labels]
    data = lapidary.dataset((example.indptr, example.indices), **{**example.given, "labels": labels})
    short_run(data, out=tmp_path / "run")
    unlabelled = lapidary.dataset((example.indptr, example.indices), features=example.features)
    assert lapidary.Predictor.load(tmp_path / "run").class_names(unlabelled) == ["even", "odd"]


def test_a_truncated_checkpoint_is_refused(data: lapidary.Dataset, tmp_path: Path) -> None:
    short_run(data, out=tmp_path / "run")
    for file in sorted((tmp_path / "run" / "best").iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(lapidary.DataError):
            lapidary.Predictor.load(tmp_path / "run")
        file.write_bytes(whole)
    assert lapidary.Predictor.load(tmp_path / "run").predict(data).shape == (60,)


def test_weights_go_out_and_in(data: lapidary.Dataset) -> None:
    one, other = (lapidary.Trainer(data, hidden=4, seed=seed) for seed in (1, 2))
    weights = one.weights()
    assert {name: weight.shape for name, weight in weights.items()} == {
        "convs.0.bias": (4,),
        "convs.0.lin.weight": (4, 6),
        "convs.1.bias": (2,),
        "convs.1.lin.weight": (2, 4),
    }
    assert all(weight.dtype == np.float32 for weight in weights.values())
    other.set_weights({name: weight.astype(np.float64) for name, weight in weights.items()})
    assert one.evaluate() == other.evaluate()
    assert (one.predictor().logits(data) == other.predictor().logits(data)).all()
    started = lapidary.Trainer(data, hidden=4, seed=3, weights=weights)
    assert all((started.weights()[name] == weight).all() for name, weight in weights.items())
    with pytest.raises(ValueError, match=r"`convs.0.bias` is \[3\], but the model needs \[4\]"):
        other.set_weights({**weights, "convs.0.bias": np.zeros(3)})
    with pytest.raises(ValueError, match="no parameter `extra`"):
        other.set_weights({**weights, "extra": np.zeros(3)})


def test_steps_are_those_of_train(data: lapidary.Dataset) -> None:
    trainer = lapidary.Trainer(data, hidden=4, epochs=5)
    records = [trainer.step() for _ in range(5)]
    run = short_run(data, epochs=5)
    assert [record.loss for record in records] == [record["loss"] for record in run.history]
    assert (trainer.epoch, trainer.best_epoch) == (5, run.best_epoch)
    assert trainer.best_scores == run.scores
    assert trainer.history == records and records[0].seconds > 0


def test_callbacks_and_the_learning_rate(data: lapidary.Dataset) -> None:
    trainer = lapidary.Trainer(data, hidden=4, epochs=100)
    seen: list[int] = []
    records = trainer.fit(callbacks=[lambda record: seen.append(record.epoch), lambda record: record.epoch == 7])
    assert seen == list(range(1, 8)) and len(records) == 7
    trainer.learning_rate = 0.0
    before = trainer.weights()
    assert trainer.learning_rate == 0.0
    assert len(trainer.fit(3)) == 3 and trainer.epoch == 10
    assert all((trainer.weights()[name] == weight).all() for name, weight in before.items())
    assert len(trainer.fit()) == 90
    with pytest.raises(ZeroDivisionError):
        trainer.fit(1, callbacks=[lambda record: 1 / 0])


def test_mini_batches_learn_and_predict(data: lapidary.Dataset, tmp_path: Path) -> None:
    run = lapidary.train(data, "sage", hidden=8, epochs=40, batch=7, fanout=[3, 2], progress=False, out=tmp_path / "run")
    assert run.test_accuracy > 0.9 and run.predict().shape == (60,)
    loaded = lapidary.Predictor.load(tmp_path / "run")
    assert (loaded.logits(data) == run.predictor.logits(data)).all()
    embedded = lapidary.train(data, "sage", hidden=8, epochs=3, batch=7, fanout=[3, 2], embedding=5, progress=False)
    assert embedded.trainer.weights()["embedding.weight"].shape == (60, 5)
    assert embedded.predict().shape == (60,)
    plan = run.trainer.plan()
    assert run.trainer.peak_device_bytes[0] <= plan["peak_device_bytes"][0]
    assert plan["batches"] == plan["drawn"] == 3 and plan["vertices"][-1] == [20 / 3, 7.0]


def test_edges_are_drawn_by_their_weights(example: Example) -> None:
    weights = np.linspace(0.1, 9.0, len(example.indices)).astype(np.float32)
    data = lapidary.dataset((example.indptr, example.indices), edge_weights=weights, **example.given)
    settings = {"epochs": 2, "batch": 7, "fanout": [1, 1], "progress": False}
    losses = [lapidary.train(data, by_weight=by, **settings).history[-1]["loss"] for by in (True, False)]
    assert losses[0] != losses[1]
    with pytest.raises(lapidary.DataError, match="edge weights"):
        lapidary.train("karate", by_weight=True, **settings)


@pytest.mark.parametrize("batches", [{}, {"batch": 7, "fanout": [3, 2]}])
def test_a_run_goes_on_where_it_ended(data: lapidary.Dataset, tmp_path: Path, batches: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"hidden": 4, "progress": False, **batches}
    whole = lapidary.train(data, epochs=9, **settings)
    folder = tmp_path / "run"
    started = lapidary.train(data, epochs=4, out=folder, resume=True, **settings)
    resumed = lapidary.train(data, epochs=9, out=folder, resume=True, **settings)
    assert [record["epoch"] for record in resumed.history] == [5, 6, 7, 8, 9]
    assert started.history + resumed.history == [
        {**record, "seconds": seen["seconds"], "eval_seconds": seen["eval_seconds"]}
        for record, seen in zip(whole.history, started.history + resumed.history)
    ]
    assert (resumed.predictor.logits(data) == whole.predictor.logits(data)).all()
    again = lapidary.train(data, epochs=9, out=folder, resume=True, **settings)
    assert again.history == [] and (again.best_epoch, again.scores) == (whole.best_epoch, whole.scores)
    trainer = lapidary.Trainer(data, **{"hidden": 4, **batches})
    assert trainer.resume(tmp_path / "nothing") is None and trainer.epoch == 0
    assert trainer.resume(folder) == trainer.epoch == 9
    with pytest.raises(lapidary.DataError, match="seed"):
        lapidary.Trainer(data, **{"hidden": 4, "seed": 1, **batches}).resume(folder)


@pytest.mark.parametrize(
    "settings, states",
    [
        ({"checkpoint_every": 2, "keep": 0}, ["epoch-00000002", "epoch-00000004", "epoch-00000005"]),
        ({"checkpoint_every": 2, "keep": 2}, ["epoch-00000004", "epoch-00000005"]),
        ({"checkpoint_every": 0}, ["epoch-00000005"]),
        ({"checkpoint_every": "1h"}, ["epoch-00000005"]),
        (
            {"checkpoint_every": 3, "checkpoint_every_batches": 5, "batch": 7, "fanout": [3, 2]},
            ["batch-00000002-00000002", "batch-00000004-00000001", "epoch-00000003", "epoch-00000005"],
        ),
    ],
)
def test_checkpoints_during_training(
    data: lapidary.Dataset, tmp_path: Path, settings: dict[str, Any], states: list[str]
) -> None:
    batches = {name: settings[name] for name in ("batch", "fanout") if name in settings}
    whole = short_run(data, epochs=5, **batches)
    run = short_run(data, epochs=5, out=tmp_path / "run", **settings)
    assert sorted(path.name for path in (tmp_path / "run").glob("*-*")) == states
    assert [record["loss"] for record in run.history] == [record["loss"] for record in whole.history]
    for state in states[:-1]:
        # A folder in which this is the newest one.
        folder = tmp_path / state
        shutil.copytree(tmp_path / "run" / state, folder / state)
        resumed = short_run(data, epochs=5, out=folder, resume=True, **settings)
        assert (resumed.predictor.logits(data) == whole.predictor.logits(data)).all(), state


def started(program: str, folder: Path) -> subprocess.Popen[str]:
    """Starts a program with a folder as its argument; it can import what the tests share."""
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        # What runs in the background ignores the signal, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ends_by_ctrl_c(job: subprocess.Popen[str]) -> None:
    os.kill(job.pid, signal.SIGINT)
    _, err = job.communicate(timeout=60)
    assert "KeyboardInterrupt" in err and job.returncode == -signal.SIGINT


def wait_for(folder: Path, states: str, job: subprocess.Popen[str]) -> list[Path]:
    """Waits until a program has written a checkpoint."""
    while not (found := list(folder.glob(states))):
        assert job.poll() is None, "the program has ended"
        time.sleep(0.01)
    return found


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"hidden": 4, "progress": False, "checkpoint_every": 3}
    program = f"import lapidary, sys; lapidary.train('planted', epochs=10**9, out=sys.argv[1], **{settings!r})"
    job = started(program, tmp_path / "run")
    wait_for(tmp_path / "run", "epoch-*", job)
    job.kill()
    job.communicate()
    trainer = lapidary.Trainer("planted", hidden=4)
    reached = trainer.resume(tmp_path / "run")
    assert reached is not None and reached % 3 == 0
    run = lapidary.train("planted", epochs=reached + 2, out=tmp_path / "run", resume=True, **settings)
    whole = lapidary.train("planted", epochs=reached + 2, hidden=4, progress=False)
    assert [record["loss"] for record in run.history] == [record["loss"] for record in whole.history[-2:]]


def test_training_goes_on_if_a_checkpoint_cannot_be_written(data: lapidary.Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def breaks(record: lapidary.Epoch) -> None:
        if record.epoch == 1:
            shutil.rmtree(folder)
            folder.write_text("no folder")
        if record.epoch == 30:
            folder.unlink()

    with pytest.warns(UserWarning, match="a checkpoint could not be written; training goes on: .*run"):
        run = short_run(data, epochs=30, out=folder, checkpoint_every=2, callbacks=[breaks])
    assert (lapidary.Predictor.load(folder).logits(data) == run.predictor.logits(data)).all()
    assert [record["loss"] for record in run.history] == [record["loss"] for record in short_run(data, epochs=30).history]


@pytest.mark.parametrize("order", ["degree", "rcm", "metis", "auto"])
def test_an_order_in_memory_changes_no_row(data: lapidary.Dataset, tmp_path: Path, order: str) -> None:
    plain = short_run(data, dropout=0.0)
    run = short_run(data, dropout=0.0, reorder=order, out=tmp_path / "run")
    # Caches hold a graph of 60 vertices in any order.
    assert run.trainer.vertex_order == ("none" if order == "auto" else order)
    np.testing.assert_allclose(run.predictor.logits(data), plain.predictor.logits(data), rtol=1e-3, atol=1e-5)
    assert run.trainer.plan()["peak_device_bytes"] == run.trainer.peak_device_bytes
    again = short_run(data, dropout=0.0, reorder="auto", out=tmp_path / "run", resume=True, epochs=4)
    assert again.trainer.vertex_order == run.trainer.vertex_order and len(again.history) == 1
    if order == "rcm":
        with pytest.raises(lapidary.DataError, match="vertex order"):
            short_run(data, dropout=0.0, out=tmp_path / "run", resume=True)


def test_a_resumed_run_has_the_learning_rate_of_the_call(data: lapidary.Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"hidden": 4, "progress": False, "out": tmp_path / "run", "resume": True}
    lapidary.train(data, epochs=2, lr=0.02, **settings)
    assert lapidary.train(data, epochs=4, lr=0.02, **settings).trainer.learning_rate == 0.02
    assert lapidary.train(data, epochs=6, lr=0.005, **settings).trainer.learning_rate == 0.005


def test_an_evaluation_after_the_last_epoch_is_saved(data: lapidary.Dataset, tmp_path: Path) -> None:
    trainer = lapidary.Trainer(data, hidden=4, epochs=2, eval_every=0)
    trainer.step(), trainer.step()
    trainer.save(tmp_path / "run")
    settings: dict[str, Any] = {"hidden": 4, "epochs": 2, "eval_every": 0, "progress": False, "out": tmp_path / "run"}
    assert lapidary.train(data, resume=True, **settings).best_epoch == 2
    trainer = lapidary.Trainer(data, hidden=4, epochs=2, eval_every=0)
    trainer.resume(tmp_path / "run")
    assert trainer.best_epoch == 2


def test_one_run_at_a_time_has_a_folder(data: lapidary.Dataset, tmp_path: Path) -> None:
    def other(record: lapidary.Epoch) -> None:
        with pytest.raises(OSError, match="in use"):
            short_run(data, out=tmp_path / "run", resume=True)

    def fails(record: lapidary.Epoch) -> None:
        raise KeyboardInterrupt

    short_run(data, out=tmp_path / "run", callbacks=[other])
    with pytest.raises(KeyboardInterrupt) as raised:
        short_run(data, out=tmp_path / "run", resume=True, epochs=9, callbacks=[fails])
    # The exception still has the frames of that run.
    assert short_run(data, out=tmp_path / "run", resume=True, epochs=5).trainer.epoch == 5, raised


def test_patience_counts_evaluations_of_a_resumed_run(data: lapidary.Dataset) -> None:
    trainer = lapidary.Trainer(data, hidden=4, eval_every=5)
    trainer.fit(5)
    trainer._resumed_at = 7
    trainer.fit(2)
    assert trainer.epoch == 7 and not trainer._is_stale(trainer.epoch - trainer.best_epoch)


def test_patience_holds_for_a_resumed_run(data: lapidary.Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"hidden": 8, "patience": 5, "progress": False, "out": tmp_path / "run"}
    run = lapidary.train(data, epochs=500, **settings)
    again = lapidary.train(data, epochs=500, resume=True, **settings)
    assert again.history == [] and again.best_epoch == run.best_epoch


def test_patience_ends_training(data: lapidary.Dataset) -> None:
    run = lapidary.train(data, hidden=8, epochs=500, patience=5, progress=False)
    assert len(run.history) == run.best_epoch + 5 < 500


def test_evaluation_only_at_the_end(data: lapidary.Dataset) -> None:
    run = short_run(data, epochs=4, eval_every=0)
    assert [record["val_accuracy"] for record in run.history] == [None] * 4
    assert run.best_epoch == 4 and run.val_accuracy is not None and run.train_accuracy is not None


def test_training_without_a_validation_split(example: Example) -> None:
    given = {name: value for name, value in example.given.items() if name not in ("val", "test")}
    run = short_run(lapidary.dataset((example.indptr, example.indices), **given))
    assert (run.best_epoch, run.val_accuracy, run.test_accuracy) == (3, None, None)
    assert run.train_accuracy is not None


def test_options_change_the_run(data: lapidary.Dataset) -> None:
    plain = short_run(data).history[-1]["loss"]
    others = [
        {"seed": 1},
        {"hidden": 5},
        {"layers": 3},
        {"dropout": 0.1},
        {"lr": 0.1},
        {"weight_decay": 0.1},
        {"norm": "mean"},
        {"layer_norm": True},
        {"activation": "elu"},
        {"input_dropout": 0.3},
        {"optimizer": "adamw"},
        {"dtype": "bf16"},
        {"optimizer": "sgd", "momentum": 0.9},
        {"weight_decay": 0.1, "decay_layers": "first"},
        {"feature_norm": "row"},
    ]
    losses = [short_run(data, **options).history[-1]["loss"] for options in others]
    assert plain not in losses and len(set(losses)) == len(losses)
    same = [{"threads": 1}, {"recompute": "always"}, {"devices": "cpu"}, {"devices": "sim:1", "device_memory": "1MiB"}]
    assert [short_run(data, **options).history[-1]["loss"] for options in same] == [plain] * len(same)


def test_little_memory_makes_tiles(data: lapidary.Dataset) -> None:
    trainer = lapidary.Trainer(data, hidden=64, devices="sim:1", device_memory=15_000)
    trainer.step()
    plan = trainer.plan()
    assert plan["tiles"] > 1 and plan["device_memory"] == 15_000
    assert trainer.peak_device_bytes[0] <= plan["peak_device_bytes"][0] <= 15_000
    assert plan["bytes_to_device"] > 0 and plan["epoch_seconds"] > 0 and plan["host_bytes"] > 0


def test_a_plan_of_a_graph_that_does_not_exist() -> None:
    shape = lapidary.Shape(vertices=20_000, edges=1_000_000, features=100, classes=10)
    plan = lapidary.plan(shape, hidden=64, profile="h200", devices="sim:1", device_memory="16MiB")
    assert plan["peak_device_bytes"][0] <= plan["device_memory"] == 16 << 20
    whole = lapidary.plan(shape, hidden=64, profile="h200", devices="sim:1")
    assert whole["bytes_to_device"] < plan["bytes_to_device"]
    assert whole["peak_device_bytes"][0] > 16 << 20


def test_a_plan_of_mini_batches_is_that_of_the_command(command: str) -> None:
    flags = ["--data", "builtin:planted", "--model", "sage", "--batch", "40", "--fanout", "5,3", "--hidden", "8"]
    out = subprocess.run([command, "plan", *flags, "--json"], capture_output=True, text=True, check=True).stdout
    theirs = json.loads(out.splitlines()[-1])
    ours = lapidary.plan("planted", "sage", batch=40, fanout=[5, 3], hidden=8)
    assert all(seconds > 0 for seconds in ours.pop("stage_seconds").values())
    assert {name: theirs[name] for name in ours} == ours
    learned = lapidary.plan("planted", "sage", batch=40, fanout=[5, 3], hidden=8, embedding=16)
    assert learned["feature_bytes"] > 0 and learned["caches"] == []


def test_ctrl_c_ends_between_epochs_and_saves(tmp_path: Path) -> None:
    program = (
        "import lapidary, sys\n"
        "say = lambda record: record.epoch == 1 and print('ready', flush=True)\n"
        "lapidary.train('planted', epochs=10**9, progress=False, callbacks=[say], out=sys.argv[1])\n"
    )
    job = started(program, tmp_path / "run")
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    ends_by_ctrl_c(job)
    assert lapidary.Predictor.load(tmp_path / "run").predict("planted").size > 0


def test_ctrl_c_ends_between_mini_batches_and_saves(tmp_path: Path) -> None:
    program = (
        "import lapidary, sys\n"
        "from conftest import make_example\n"
        "example = make_example(vertices=20_000, degree=10, width=64)\n"
        "given = {'features': example.features, 'labels': example.labels, 'train': range(20_000)}\n"
        "data = lapidary.dataset((example.indptr, example.indices), **given)\n"
        "settings = dict(batch=1, fanout=[10, 10], checkpoint_every_batches=100)\n"
        "lapidary.train(data, 'sage', epochs=1, progress=False, out=sys.argv[1], **settings)\n"
    )
    job = started(program, tmp_path / "run")
    states = wait_for(tmp_path / "run", "batch-*", job)
    ends_by_ctrl_c(job)
    newest = max(state.name for state in (tmp_path / "run").glob("*-*"))
    # The epoch has 20,000 batches.
    assert states[0].name < newest < "batch-00000001-00020000"


def test_other_threads_run_during_an_epoch() -> None:
    large = make_example(vertices=20_000, degree=10, width=64)
    data = lapidary.dataset((large.indptr, large.indices), **large.given)
    trainer = lapidary.Trainer(data, hidden=256)
    counted, ended = 0, threading.Event()

    def train() -> None:
        trainer.step()
        ended.set()

    worker = threading.Thread(target=train)
    worker.start()
    while not ended.is_set():
        counted += 1
        time.sleep(0.001)
    worker.join()
    # With the GIL held, this thread would count once or twice.
    assert counted >= 5


def test_two_threads_share_a_trainer(data: lapidary.Dataset) -> None:
    trainer = lapidary.Trainer(data, hidden=4)
    workers = [threading.Thread(target=lambda: [trainer.step() for _ in range(20)]) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert trainer.epoch == 40


def test_progress_needs_tqdm(data: lapidary.Dataset, capfd: Any, monkeypatch: Any) -> None:
    pytest.importorskip("tqdm")
    lapidary.train(data, epochs=3, progress=True)
    assert "training" in capfd.readouterr().err
    lapidary.train(data, epochs=3)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("lapidary._progress.find_spec", lambda name: None)
    lapidary.train(data, epochs=3, progress=True)
    assert capfd.readouterr().err == ""


def test_a_bar_shows_mini_batches(data: lapidary.Dataset, capfd: Any) -> None:
    pytest.importorskip("tqdm")
    short_run(data, batch=7, fanout=[3, 2], progress=True)
    assert "training, batch 3 of 3" in capfd.readouterr().err


def test_only_numpy_is_imported() -> None:
    program = "import sys, lapidary; print([m for m in sys.argv[1:] if m in sys.modules])"
    optional = ["scipy", "pandas", "torch", "networkx", "sklearn", "tqdm", "IPython", "dgl"]
    out = subprocess.run([sys.executable, "-c", program, *optional], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_settings_are_declared_once() -> None:
    assert _settings.Settings.__annotations__.keys() == _settings.ALL.keys()
    assert _settings.DeviceSettings.__annotations__.keys() == _settings.DEVICES.keys()


def test_help_shows_all_settings() -> None:
    import inspect

    for function in (lapidary.train, lapidary.Trainer, lapidary.plan):
        assert _settings.ALL.keys() <= inspect.signature(function).parameters.keys()
    assert "devices" in inspect.signature(lapidary.Predictor.load).parameters


def test_everything_public_is_documented() -> None:
    for name in lapidary.__all__:
        item = getattr(lapidary, name)
        if name == "__version__":
            continue
        assert item.__doc__, name
        members = vars(item).items() if isinstance(item, type) else ()
        builtin = (property, classmethod, type(short_run))
        undocumented = [
            key
            for key, value in members
            if not key.startswith("_") and isinstance(value, builtin) and not value.__doc__
        ]
        assert not undocumented, f"{name}: {undocumented}"
    assert builtins.len(lapidary.__version__.split(".")) == 3


def command_epochs(command: str, *args: object) -> list[dict[str, Any]]:
    out = subprocess.run(
        [command, "train", "--json", *map(str, args)], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in map(json.loads, out.splitlines()) if line["event"] == "epoch"]


@pytest.mark.parametrize(
    "flags, settings",
    [
        ([], {}),
        (["--seed", 5, "--hidden", 8, "--layers", 3, "--lr", 0.02], {"seed": 5, "hidden": 8, "layers": 3, "lr": 0.02}),
        (["--model", "gat", "--heads", 2, "--dtype", "bf16"], {"model": "gat", "heads": 2, "dtype": "bf16"}),
        (
            ["--optimizer", "adamw", "--norm", "mean", "--layer-norm"],
            {"optimizer": "adamw", "norm": "mean", "layer_norm": True},
        ),
        (["--class-weights", "balanced"], {"class_weights": "balanced"}),
        (["--class-weights", "1,2,0.5,0,1,1,3"], {"class_weights": [1, 2, 0.5, 0, 1, 1, 3]}),
        (["--reorder", "rcm"], {"reorder": "rcm"}),
        (["--devices", "sim:2", "--partition", "edges"], {"devices": "sim:2", "partition": "edges"}),
        (["--model", "sage", "--batch", 40, "--fanout", "5,3"], {"model": "sage", "batch": 40, "fanout": [5, 3]}),
        (
            ["--batch", 64, "--fanout", "40,20", "--sampler", "ladies", "--eval-fanout", "9,-1"],
            {"batch": 64, "fanout": "40,20", "sampler": "ladies", "eval_fanout": (9, -1)},
        ),
        (
            ["--batch", 64, "--fanout", "4,4", "--replace", "--embedding", 8, "--look-ahead", 0],
            {"batch": 64, "fanout": [4, 4], "replace": True, "embedding": 8, "look_ahead": 0},
        ),
        (
            ["--devices", "sim:2", "--batch", 64, "--fanout", "4,4", "--device-cache", "50%", "--seeds", "own"],
            {"devices": "sim:2", "batch": 64, "fanout": [4, 4], "device_cache": "50%", "seeds": "own"},
        ),
    ],
)
def test_losses_have_the_bits_of_the_command(command: str, flags: list[Any], settings: dict[str, Any]) -> None:
    epochs = command_epochs(command, "--data", "builtin:planted", "--epochs", 20, *flags)
    run = lapidary.train("planted", epochs=20, progress=False, **settings)
    for ours, theirs in zip(run.history, epochs):
        assert (ours["epoch"], ours["loss"]) == (theirs["epoch"], theirs["loss"])
        assert ours["val_accuracy"] == theirs["val_accuracy"]
    assert len(run.history) == len(epochs) == 20


def test_settings_that_suit_the_data_are_those_of_the_command(command: str, shared_data: Path) -> None:
    folder = shared_data / "amazon-computers"
    suggested = lapidary.suggest(folder, "gin")
    assert suggested == {
        "hidden": 64,
        "layer_norm": True,
        "lr": 0.001,
        "feature_norm": "none",
        "epochs": 500,
        "patience": 100,
    }
    epochs = command_epochs(command, "--data", folder, "--model", "gin", "--epochs", 3)
    run = lapidary.train(folder, "gin", progress=False, **{**suggested, "epochs": 3})
    assert [record["loss"] for record in run.history] == [epoch["loss"] for epoch in epochs]


def test_weights_of_classes_that_cannot_be_are_refused(data: lapidary.Dataset) -> None:
    for weights in ("heavy", [1.0], [0.0, -1.0], [0, 0]):
        with pytest.raises(lapidary.DataError, match="class_weights"):
            lapidary.train(data, class_weights=weights, epochs=1, progress=False)


def test_real_losses_have_the_bits_of_the_command(command: str, shared_data: Path) -> None:
    folder = shared_data / "cora"
    epochs = command_epochs(command, "--data", folder, "--defaults", "plain", "--epochs", 10)
    # Arrays of numpy are the same data as the directory.
    arrays = {file.stem: np.load(file) for file in folder.glob("*.npy")}
    sparse = pytest.importorskip("scipy.sparse")
    parts = [arrays.pop(f"features_{part}") for part in ("values", "indices", "indptr")]
    width = json.loads((folder / "dataset.json").read_text())["feature_width"]
    features = sparse.csr_matrix(tuple(parts), shape=(len(arrays["labels"]), width))
    graph = (arrays.pop("indptr"), arrays.pop("indices"))
    from_arrays = lapidary.dataset(graph, features=features, **arrays)
    for data in (lapidary.dataset(folder), from_arrays):
        run = lapidary.train(data, epochs=10, progress=False)
        assert [record["loss"] for record in run.history] == [epoch["loss"] for epoch in epochs]


def test_the_command_reads_our_checkpoints(command: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = lapidary.train("planted", epochs=20, progress=False, out=tmp_path / "run")
    flags = ["--checkpoint", tmp_path / "run", "--data", "builtin:planted"]
    for name in ("table.csv", "logits.npy"):
        subprocess.run(
            [command, "infer", *map(str, flags), "--out", str(tmp_path / name)], check=True, capture_output=True
        )
    assert (np.load(tmp_path / "logits.npy") == run.predictor.logits("planted")).all()
    theirs, ours = pandas.read_csv(tmp_path / "table.csv"), run.predictions()
    assert theirs["prediction"].tolist() == [int(value) for value in ours["prediction"]]
    assert (theirs["probability"].astype(np.float32) == ours["probability"]).all()
    train = [command, "train", "--epochs", "20", "--checkpoint", str(tmp_path / "theirs")]
    subprocess.run(train, check=True, capture_output=True)
    assert (lapidary.Predictor.load(tmp_path / "theirs").logits("planted") == run.predictor.logits("planted")).all()
