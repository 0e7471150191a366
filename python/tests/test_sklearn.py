"""The estimator, with and without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import Example

import lapidary
from lapidary.sklearn import NodeClassifier


def small(**parameters: Any) -> NodeClassifier:
    return NodeClassifier(**{"hidden": 8, "epochs": 60, **parameters})


def test_fit_predict_score(example: Example) -> None:
    names = np.array(["cat", "dog"])[example.labels].astype(object)
    partial = names.copy()
    partial[example.test] = None
    graph = (example.indptr, example.indices)
    classifier = small().fit(graph, partial, features=example.features)
    assert classifier.classes_.tolist() == ["cat", "dog"]
    assert classifier.score(graph, names, features=example.features) > 0.9
    predicted = classifier.predict(graph, features=example.features)
    assert (predicted == classifier.predict()).all() and set(predicted) == {"cat", "dog"}
    assert classifier.predict_proba().shape == (60, 2)
    assert classifier.run_.trainer.data.split("train").size == 60 - example.test.size


def test_classes_keep_their_numbers(example: Example) -> None:
    labels = np.where(example.labels == 1, 70, 20)
    classifier = small().fit(example.edges, labels, features=example.features, train=example.train)
    assert classifier.classes_.tolist() == [20, 70]
    assert set(classifier.predict().tolist()) == {20, 70}
    assert classifier.run_.trainer.data.split("train").size == example.train.size
    assert classifier.score(y=labels) > 0.9


def test_labels_by_name(example: Example) -> None:
    networkx, pandas = pytest.importorskip("networkx"), pytest.importorskip("pandas")
    graph = networkx.Graph()
    # Names are numbers, but not those of the vertices.
    graph.add_nodes_from(range(159, 99, -1))
    graph.add_edges_from((example.edges.T + 100).tolist())
    labels = pandas.Series(np.array([20, 70])[example.labels], index=range(100, 160)).drop(index=example.test + 100)
    given = {"features": pandas.DataFrame(example.features, index=range(100, 160))}
    classifiers = [small().fit(graph, y, **given) for y in (labels, labels.to_dict(), labels.astype(object))]
    for classifier in classifiers:
        assert classifier.classes_.tolist() == [20, 70]
        data = classifier.run_.trainer.data
        assert data.names == list(range(159, 99, -1)) and data.split("train").size == 60 - example.test.size
        assert (classifier.predict() == classifiers[0].predict()).all()
        assert classifier.score(y=labels) == classifier.score(graph, labels.to_dict(), **given) > 0.9
    in_order = np.array([labels.get(name, -1) for name in data.names])
    assert (small().fit(graph, in_order, **given).predict() == classifiers[0].predict()).all()
    splits = small().fit(graph, labels, train=[100, 101, 159], **given).run_.trainer.data.split("train")
    assert splits.tolist() == [0, 58, 59]
    with pytest.raises(ValueError, match="labels no vertex"):
        classifier.score(y={})
    with pytest.raises(ValueError, match="`y` has 3 labels, expected 60"):
        classifier.score(y=np.array([20, 70, 70]))


def test_labels_of_the_graph(example: Example) -> None:
    data = lapidary.dataset(example.edges, **example.given)
    classifier = small(patience=20, settings={"optimizer": "adamw"}).fit(data)
    assert classifier.score() == classifier.score(data) == classifier.run_.test_accuracy
    assert classifier.classes_.tolist() == [0, 1]


def test_wrong_use(example: Example) -> None:
    with pytest.raises(ValueError, match="not fitted yet"):
        small().predict()
    with pytest.raises(ValueError, match="takes no `labels`"):
        small().fit(lapidary.dataset(example.edges), example.labels)
    classifier = small(epochs=1).fit(example.edges, example.labels, features=example.features)
    with pytest.raises(ValueError, match="give y"):
        classifier.score()
    for graph, y in ((example.edges, np.ones((60, 2))), (lapidary.dataset(example.edges), None)):
        with pytest.raises(ValueError, match="one class per vertex"):
            small().fit(graph, y)
    with pytest.raises(TypeError, match="no argument `depth`"):
        small(settings={"depth": 3}).fit(example.edges, example.labels, features=example.features)


def test_scikit_learn_clones_it(example: Example) -> None:
    base = pytest.importorskip("sklearn.base")
    original = small(lr=0.02, settings={"norm": "mean"})
    copy = base.clone(original)
    assert copy is not original and copy.get_params() == original.get_params()
    assert base.is_classifier(copy)
    assert copy.set_params(hidden=4).get_params()["hidden"] == 4
    assert copy.fit(example.edges, example.labels, features=example.features).predict().shape == (60,)


def test_it_works_without_scikit_learn() -> None:
    program = """
import sys
sys.modules["sklearn"] = None
from lapidary.sklearn import NodeClassifier
classifier = NodeClassifier(hidden=8, epochs=30)
assert classifier.get_params()["hidden"] == 8
assert classifier.set_params(hidden=4).hidden == 4
try:
    classifier.set_params(depth=1)
except ValueError as error:
    assert "no parameter `depth`" in str(error)
print(classifier.fit("karate").score())
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert float(out.stdout) > 0.7
