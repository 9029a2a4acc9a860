"""The graph of a language model, and its walk. No torch.

    chat        conversation -> text, token by token

What flows, per request, with N tokens of prompt and T of them and of the answer so far:

    ids [N] int64           the prompt
    token [1] int64         the last one drawn
    history [T] int64       all tokens so far, `token` included
    state [...] int64       what the model's own code for ends and text remembers from one token to the next
    reason [] int64         why it ends with this token, see model.generation.Reason; 0: it goes on

`prefill` draws the first token, which iteration 0 of `decode` only passes on, so that every token goes out from one
place. So an answer of n tokens is n iterations, of which n - 1 run the network.
"""

from __future__ import annotations

from mstar_rt.graph import DynamicLoop, GraphNode, Sequential, Walk, WalkGraph

CACHE = "text"
TEXT = "text"
"""The label of a request's sequence."""
CARRIED = ("token", "history", "state")


def prefill_node() -> GraphNode:
    return GraphNode(
        "prefill", ("ids",), CARRIED, engine="kv_cache", cache=CACHE, doc="the prompt into the cache; the first token"
    )


def decode_node(*outputs: str) -> GraphNode:
    """`outputs`: what the model's Ending gives with each token."""
    return GraphNode(
        "decode", CARRIED, (*CARRIED, "reason", *outputs), engine="kv_cache", cache=CACHE, doc="the next token"
    )


def writing(decode: GraphNode, limit: int) -> DynamicLoop:
    """The loop over tokens, up to the option `max_tokens`, at most `limit`."""
    carry = {name: name for name in CARRIED}
    return DynamicLoop("writing", decode, times="max_tokens", limit=limit, carry=carry, leave="decode")


def finish_node() -> GraphNode:
    slots = ("reason", "num_input_tokens")
    return GraphNode("finish", slots, slots, doc="how it ended")


def build_graph(limit: int) -> WalkGraph:
    prompt = GraphNode("prompt", ("conversation",), ("ids", "num_input_tokens"), doc="the chat template, as tokens")
    prefill, decode, finish = prefill_node(), decode_node("text"), finish_node()
    chat = Walk(
        "chat",
        Sequential(prompt, prefill, writing(decode, limit), finish),
        emit=("text", "decode.token", "finish.reason", "finish.num_input_tokens"),
    )
    return WalkGraph(nodes=(prompt, prefill, decode, finish), walks=(chat,))
