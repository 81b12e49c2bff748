"""Autograd's graph, walked and drawn: the right nodes, values and gradients, on well-formed SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch

from course_utils.graphs import graph_diagram, graph_text, tracing, walk_graph


def example():
    w, b = torch.tensor(2.0, requires_grad=True), torch.tensor(-1.0, requires_grad=True)
    with tracing() as trace:
        y = (w * 3.0 + b) * w
    y.backward()
    return y, trace, {"w": w, "b": b}


def test_nodes_carry_values_and_gradients_after_backward():
    y, trace, names = example()
    nodes = {node.name: node for node in walk_graph(y, trace, names)}
    assert (nodes["w"].value, nodes["w"].grad) == ("2", "11")  # d/dw (3w² + bw) = 6w + b
    assert (nodes["b"].value, nodes["b"].grad) == ("-1", "2")
    assert (nodes["Add"].value, nodes["Add"].grad) == ("5", "2")


def test_a_leaf_that_is_used_twice_is_one_node_with_two_users():
    y, trace, names = example()
    nodes = walk_graph(y, trace, names)
    assert sum(node.is_leaf for node in nodes) == 2
    w = next(i for i, node in enumerate(nodes) if node.name == "w")
    assert sum(w in node.inputs for node in nodes) == 2


def test_inputs_stand_before_what_uses_them_and_the_output_is_last():
    y, trace, names = example()
    nodes = walk_graph(y, trace, names)
    assert all(source < index for index, node in enumerate(nodes) for source in node.inputs)
    assert not any(len(nodes) - 1 in node.inputs for node in nodes)


def test_without_a_trace_the_structure_is_still_there():
    w = torch.ones(2, 3, requires_grad=True)
    assert [node.name for node in walk_graph((w * 2).sum())] == ["leaf 2×3", "Mul", "Sum"]


def test_a_tensor_without_history_is_refused():
    with pytest.raises(ValueError, match="no grad_fn"):
        walk_graph(torch.ones(1))


def test_a_graph_of_thousands_of_nodes_is_walked_without_recursion():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1
    assert len(walk_graph(y)) == 5001


def test_diagram_is_well_formed_says_the_same_in_words_and_hides_no_edge():
    y, trace, names = example()
    nodes = walk_graph(y, trace, names)
    diagram = graph_diagram(nodes)
    ET.fromstring(diagram.svg)
    assert diagram.text == graph_text(nodes)
    edges = sum(len(set(node.inputs)) for node in nodes)
    assert len(re.findall(r'fill="none"', diagram.svg)) == edges
