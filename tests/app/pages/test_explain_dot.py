"""The graph of an explanation: valid in Graphviz' language, complete, legible."""

import itertools
import re

import pytest

from trimtab.app.pages import render_dot

PLANS = ["ddp", "zero3", "expert-parallel", "mixed", "megatron-3d", "llama3-405b-4d", "diloco", "hsdp"]

_TOKEN = re.compile(
    r'\s*(?:("(?:[^"\\\n]|\\.)*")|(->|[\[\]{};,=])|(digraph|subgraph|graph|node|edge)\b|(\S))'
)


class Graph:
    """A strict reader of the part of the language that is written here (graphviz.org/doc/info/lang.html).

    Every identifier is a quoted string, but for keywords and names of attributes; anything else fails.
    """

    def __init__(self, text):
        self.tokens = list(self._tokens(text))
        self.nodes, self.edges, self.clusters, self.title = {}, [], {}, {}
        self._take("digraph")
        self._statements(None)
        assert not self.tokens, self.tokens[:5]

    def _tokens(self, text):
        at = 0
        text = re.sub(r"(?<=[\[ ])(\w+)(?==\")", r'"\1"', text.rstrip())
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match, f"not of the language: {text[at : at + 40]!r}"
            assert match[4] is None, f"not of the language: {match[4]!r}"
            yield match[1] or match[2] or match[3]
            at = match.end()

    def _take(self, wanted):
        token = self.tokens.pop(0)
        assert token == wanted, f"{token} where {wanted} must stand"

    def _string(self):
        token = self.tokens.pop(0)
        assert token.startswith('"'), f"{token} where a string must stand"
        return token[1:-1]

    def _statements(self, cluster):
        self._take("{")
        while self.tokens[0] != "}":
            self._statement(cluster)
        self._take("}")

    def _statement(self, cluster):
        if self.tokens[0] == "subgraph":
            self._take("subgraph")
            name = self._string()
            assert name.startswith("cluster_"), "only clusters are drawn as boxes"
            self.clusters[name] = []
            self._statements(name)
            return
        if self.tokens[0] in ("graph", "node", "edge"):
            kind = self.tokens.pop(0)
            found = self._attributes()
            if kind == "graph" and cluster is None:
                self.title = found
        else:
            tail = self._string()
            if self.tokens[0] == "->":
                self._take("->")
                self.edges.append((tail, self._string(), self._attributes()))
            else:
                assert tail not in self.nodes, f"{tail} twice"
                self.nodes[tail] = self._attributes()
                if cluster is not None:
                    self.clusters[cluster].append(tail)
        self._take(";")

    def _attributes(self):
        found = {}
        self._take("[")
        while True:
            name = self._string()
            self._take("=")
            assert name not in found
            found[name] = self._string()
            if self.tokens.pop(0) == "]":
                return found


@pytest.mark.parametrize("name", ["mixed", "zero3"])
def test_a_graph_as_before(name, explanation, matches_golden):
    """A graph changes only when somebody means it to."""
    matches_golden(f"{name}.dot", render_dot(explanation(name)))


@pytest.mark.parametrize("name", PLANS)
def test_a_graph_is_valid_and_every_edge_has_its_ends(name, explanation):
    """Graphviz makes a box of its own for an end that is not declared: a name that no one can place."""
    graph = Graph(render_dot(explanation(name)))
    assert {end for tail, head, _ in graph.edges for end in (tail, head)} <= set(graph.nodes)


@pytest.mark.parametrize("name", PLANS)
def test_every_rank_group_is_a_cluster_and_every_collective_is_on_an_edge(name, explanation):
    """What is missing in the picture is taken for not being sent."""
    document = explanation(name)
    graph = Graph(render_dot(document))
    assert set(graph.clusters) == {f"cluster_{group['name']}" for group in document["groups"]}
    for group in document["groups"]:
        labels = [edge["label"] for tail, head, edge in graph.edges if group["name"] in (tail, head)]
        for facts in group["collectives"]:
            assert any(facts["operation"] in label and facts["decided_by"] in label for label in labels), (
                facts
            )


@pytest.mark.parametrize("name", ["megatron-3d", "llama3-405b-4d"])
def test_512_ranks_stay_legible(name, explanation):
    """A box for each rank would be a carpet."""
    graph = Graph(render_dot(explanation(name)))
    assert len(graph.nodes) < 40
    assert len(graph.edges) < 100


def test_neighbouring_stages_are_joined_once(explanation):
    """Stages of an interleaved pipeline go round: the last rank hands on to the first."""
    graph = Graph(render_dot(explanation("llama3-405b-4d")))
    handed = {
        (tail, head): edge["label"] for tail, head, edge in graph.edges if edge["label"].startswith("send")
    }
    names = "ABCDEFGH"
    assert set(handed) == {*itertools.pairwise(names), ("A", "H")}
    assert "send forward, H to A" in handed["A", "H"]
    assert "send backward, A to H" in handed["A", "H"]


def test_a_rank_in_the_middle_of_a_v_hands_on_to_both_sides(explanation):
    """Its two stages have two neighbours: each gets half of what the rank sends."""
    document = explanation("llama3-405b-4d")
    places = [*range(8), *reversed(range(8))]
    for stage, place in zip(document["stages"], places, strict=True):
        stage["place"] = place
    for group in document["groups"]:
        group["stages"] = [stage for stage in document["stages"] if stage["place"] == group["place"]]
    document["groups"][1]["collectives"] = [
        facts | {"group_bytes": {"node": 0, "site": 8_000}}
        for facts in document["groups"][1]["collectives"]
        if facts["operation"] == "send" and facts["phase"] == "forward"
    ]
    graph = Graph(render_dot(document))
    labels = [edge["label"] for tail, head, edge in graph.edges if (tail, head) in (("A", "B"), ("B", "C"))]
    assert len(labels) == 2
    assert "send forward, B to A: 4 KB between nodes" in labels[0]
    assert "send forward, B to C: 4 KB between nodes" in labels[1]


def test_what_crosses_rank_groups_meets_outside_their_boxes(explanation):
    """A group over the pipeline's axis drawn inside a stage would say that only this stage takes part."""
    graph = Graph(render_dot(explanation("mixed")))
    inside = {name for members in graph.clusters.values() for name in members}
    meetings = {head for _, head, _ in graph.edges} - set("ABCD")
    assert {name for name in meetings if "dp 4 of" in name and "tp" not in name} <= inside
    assert {name for name in meetings if name.startswith("tp 2")}.isdisjoint(inside)


@pytest.mark.parametrize(
    "payload",
    [
        '"]; evil [label="',
        '\\"]; evil; "',
        "\\",
        "\\N\\G",
        "<b>x</b>",
        "&lt;",
        "a\nb",
        "->{}[];,=",
        "\u202e\x00\ud800",
    ],
)
def test_names_cannot_break_out(payload, explanation):
    """A name ends where it ends: what follows must not become a node, an escape or an entity."""
    document = explanation("mixed")
    clean = Graph(render_dot(document))
    document["run"] = document["model"]["network"] = document["where"]["cluster"] = payload
    for group in document["groups"]:
        group["title"] += payload
        for facts in group["collectives"]:
            facts["decided_by"] += payload
    text = render_dot(document)
    found = Graph(text)
    text.encode()
    assert set(found.nodes) == set(clean.nodes)
    assert [edge[:2] for edge in found.edges] == [edge[:2] for edge in clean.edges]
    label = found.title["label"].replace("\\\\", "").replace('\\"', "").replace("\\n", "")
    assert "\\" not in label
    assert not re.search(r"&(?!amp;)", label)


def test_the_reader_refuses_what_graphviz_refuses():
    """A reader that takes everything proves nothing."""
    good = 'digraph {\n  graph [label="x"];\n  "a" -> "b" [label="c"];\n}\n'
    assert Graph(good).edges == [("a", "b", {"label": "c"})]
    for bad in (
        good.replace('"c"', '"c'),
        good.replace('"c"', '"c"d"'),
        good.replace("];\n}", "]\n}"),
        good.replace("->", "--"),
        good.replace('"a"', "a b"),
        good + "}",
    ):
        with pytest.raises((AssertionError, IndexError)):
            Graph(bad)
