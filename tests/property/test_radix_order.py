"""SGLang's radix cache evicts the least recently used leaf first: so does our queue of free blocks, with a token to a block.

Both serve requests one at a time here; `Radix` is a tree of single tokens, written down from the SGLang paper (Zheng et al.
2024). SGLang itself evicts a whole edge of its tree at a time, so it may drop more than it has to; this one does not.
"""

from dataclasses import dataclass, field
from typing import Optional

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.contracts.fleets import arrivals, engine, run

SECONDS_APART = 100.0  # longer than any request takes


@dataclass
class Node:
    parent: Optional["Node"]
    used_at: int = 0
    children: dict[int, "Node"] = field(default_factory=dict)


class Radix:
    """A cache of `size` tokens."""

    def __init__(self, size: int) -> None:
        self.size, self.num_tokens, self.now = size, 0, 0
        self.root = Node(None)

    def serve(self, tokens: list[int]) -> int:
        """Computes a prompt; returns how many of its tokens were there. The last one is always computed."""
        self.now += 1
        path = self.path_of(tokens[:-1])
        held = {id(node) for node in path}
        node = path[-1] if path else self.root
        self.make_room(len(tokens) - len(path), held)
        for token in tokens[len(path) :]:
            if token not in node.children:  # the last token may be there; computed again, it replaces nothing
                node.children[token] = Node(node)
                self.num_tokens += 1
            node = node.children[token]
        while node.parent is not None:
            node.used_at, node = self.now, node.parent
        return len(path)

    def path_of(self, tokens: list[int]) -> list[Node]:
        node, path = self.root, []
        for token in tokens:
            if token not in node.children:
                break
            node = node.children[token]
            path.append(node)
        return path

    def make_room(self, num_tokens: int, held: set[int]) -> None:
        while self.num_tokens + num_tokens > self.size:
            leaf = min((one for one in self.leaves(self.root) if id(one) not in held), key=lambda one: one.used_at)
            assert leaf.parent is not None
            leaf.parent.children = {token: one for token, one in leaf.parent.children.items() if one is not leaf}
            self.num_tokens -= 1

    def leaves(self, node: Node) -> list[Node]:
        if not node.children:
            return [] if node is self.root else [node]
        return [leaf for child in node.children.values() for leaf in self.leaves(child)]


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=1, max_size=25),
    size=st.integers(9, 24),
)
@settings(max_examples=150)
def test_the_tokens_found_are_those_of_a_radix_tree(prompts: list[list[int]], size: int) -> None:
    radix = Radix(size)
    # a prompt that was asked before whole would be computed into a second copy of its last token, which a tree has not
    prompts = [[*prompt, 1000 + number] for number, prompt in enumerate(prompts)]
    rows = arrivals([(SECONDS_APART * number, len(prompt), 1) for number, prompt in enumerate(prompts)])
    limits = engine(block_size=1, num_usable_blocks=size, enable_prefix_caching=1, max_model_len=64)
    ran = run(rows, limits, segments=[[(token, 1) for token in prompt] for prompt in prompts])
    assert ran.requests.num_cached_tokens.tolist() == [radix.serve(prompt) for prompt in prompts]
