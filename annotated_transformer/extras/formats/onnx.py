"""ONNX, for onnxruntime and transformers.js: the model's graphs, in Hugging Face's folder.

They are made from what `huggingface` wrote, and their names and axes are those of optimum's files,
for which other programs ask. The decoder comes without a cache, and "merged" with one: keys and
values go in as past_key_values and come out as present. `use_cache_branch` is false in the first
step: it computes those of the source, and what goes in as past counts for nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated_transformer.checkpoint import weights
from annotated_transformer.checkpoint.directory import MAX_CONFIG_BYTES, require_room_for_result
from annotated_transformer.errors import needs_extra
from annotated_transformer.extras.formats import huggingface
from annotated_transformer.extras.formats.parameter_names import LOGITS_BIAS, TABLE, sines_first
from annotated_transformer.files import read_json, write_bytes
from annotated_transformer.model.embedding import positional_encoding

ONNX_FILES = "encoder_model.onnx", "decoder_model.onnx", "decoder_model_merged.onnx"
OPSET = 20
IR_VERSION = 9  # neither is the newest, which programs in use may not know
BATCH = "batch_size"  # transformers.js looks for this name when it makes an empty cache
SOURCE, TARGET = "encoder_sequence_length", "decoder_sequence_length"
FLOAT, INTEGER, BOOLEAN = 1, 7, 9  # types by ONNX's numbers
ONNX_ACTIVATIONS = {"relu": "Relu", "gelu": "Gelu", "silu": "Sigmoid"}
LOWEST = torch.tensor(torch.finfo(torch.float32).min)
ZERO, ONE, TWO, ALL = (torch.tensor([i]) for i in (0, 1, 2, 2**31))


def export_checkpoint(directory: str | Path, out: str | Path, notes: str = "") -> Path:
    """Write what `huggingface.export_checkpoint` writes, and the graphs in float32 into `out`/onnx.

    Raises ConfigError, before anything is written, where that does.
    """
    with needs_extra("onnx"):
        import onnx
    out = Path(out)
    names = [f"onnx/{name}" for name in ONNX_FILES]
    require_room_for_result(out, names, directory, huggingface.is_export(out))
    out = huggingface.export_checkpoint(directory, out, notes=notes)
    config = read_json(out / "config.json", MAX_CONFIG_BYTES)
    tensors, _ = weights.load_tensors(out / "model.safetensors")
    for name in ONNX_FILES:
        graph = _Graph(onnx, config, tensors)
        graph.encode() if name.startswith("encoder") else graph.decode("merged" in name)
        write_bytes(out / "onnx" / name, graph.model().SerializeToString())
    return out


class _Graph:
    """Calling it adds an operator, and gives the name of what comes out of it."""

    def __init__(self, onnx: Any, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.onnx = onnx
        self.config = config
        self.tensors = tensors
        self.d_model: int = config["d_model"]
        self.h: int = config["decoder_attention_heads"]
        self.d_k = self.d_model // self.h
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: dict[Tensor, str] = {}
        self.n_kept = ""  # how many rows of the past count, none or all; no name without a past

    def __call__(self, operator: str, *inputs: str | Tensor, out: str = "", **settings: Any) -> str:
        out = out or f"{operator}_{len(self.nodes)}"
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        self.nodes.append(self.onnx.helper.make_node(operator, names, [out], **settings))
        return out

    def constant(self, x: Tensor) -> str:
        return self.constants.setdefault(x, f"constant_{len(self.constants)}")

    def input(self, name: str, *shape: int | str, kind: int = FLOAT) -> str:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, x: str, name: str, *shape: int | str) -> str:
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, FLOAT, shape))
        return self("Identity", x, out=name)

    def model(self) -> Any:
        make = self.onnx.helper
        array = self.onnx.numpy_helper.from_array
        arrays = [array(x.contiguous().numpy(), name) for x, name in self.constants.items()]
        graph = make.make_graph(self.nodes, "model", self.inputs, self.outputs, arrays)
        opsets = [make.make_opsetid("", OPSET)]
        return make.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def encode(self) -> None:
        mask = self.padding("attention_mask")
        ids = self.input("input_ids", BATCH, SOURCE, kind=INTEGER)
        own = "self_attn", mask, "", ""
        x = self.stack("encoder", ids, ZERO, self("Shape", ids, start=1), own)
        self.output(x, "last_hidden_state", BATCH, SOURCE, self.d_model)

    def decode(self, is_merged: bool) -> None:
        mask = self.padding("encoder_attention_mask")
        ids = self.input("input_ids", BATCH, TARGET, kind=INTEGER)
        memory = self.input("encoder_hidden_states", BATCH, SOURCE, self.d_model)
        start: str | Tensor = ZERO
        if is_merged:
            is_cached = self.input("use_cache_branch", 1, kind=BOOLEAN)
            self.n_kept = self("Where", is_cached, ALL, ZERO)
            memory = self("Slice", memory, self.n_kept, ALL, ONE)  # nothing, where it is cached
            n_past = self("Shape", "past_key_values.0.decoder.key", start=2, end=3)
            start = self("Where", is_cached, n_past, ZERO)
        length = self("Shape", ids, start=1)
        end = self("Add", start, length)
        unseen = self("Expand", LOWEST, self("Concat", length, end, axis=0))
        causal = self("Trilu", unseen, self("Squeeze", self("Add", start, ONE)))
        own = "self_attn", causal, "decoder", ""
        cross = "encoder_attn", mask, "encoder", memory
        x = self.stack("decoder", ids, start, end, own, cross)
        logits = self("MatMul", x, self("Transpose", self.tensors[TABLE], perm=[1, 0]))
        logits = self("Add", logits, self.tensors[LOGITS_BIAS])
        self.output(logits, "logits", BATCH, TARGET, self.config["vocab_size"])
        self.outputs.insert(0, self.outputs.pop())  # programs take the first for the logits

    def padding(self, name: str) -> str:
        mask = self.input(name, BATCH, SOURCE, kind=INTEGER)
        added = self("Where", self("Equal", mask, ONE), torch.tensor(0.0), LOWEST)
        return self("Unsqueeze", added, torch.tensor([1, 2]))

    def stack(self, side: str, ids: str, start: str | Tensor, end: str, *attentions: Any) -> str:
        """All layers; of each attention its name, its mask, where its keys are kept, what from."""
        table = self.tensors.get(f"model.{side}.embed_positions.weight")
        if table is None:
            table = positional_encoding(self.config["max_position_embeddings"], self.d_model)
            table = table[:, sines_first(self.d_model)]
        rows = self("Gather", self.tensors[TABLE], ids)
        rows = self("Mul", rows, torch.tensor(self.d_model**0.5))
        x = self("Add", rows, self("Slice", table, start, end, ZERO))
        activation = self.config["activation_function"]
        for i in range(self.config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{i}"
            for name, mask, cache, memory in attentions:
                x = self.attend(x, f"{layer}.{name}", mask, cache and f"{i}.{cache}", memory)
            norm = f"{layer}.final_layer_norm"
            inner = self.linear(self.norm("pegasus", x, norm), f"{layer}.fc1")
            y = self(ONNX_ACTIVATIONS[activation], inner)
            y = self("Mul", inner, y) if activation == "silu" else y
            x = self.norm("marian", self("Add", x, self.linear(y, f"{layer}.fc2")), norm)
        return self.norm("pegasus", x, f"model.{side}.layer_norm")

    def norm(self, model_type: str, x: str, name: str) -> str:
        """LayerNorm, where this type of model has it: Pegasus before a sub-layer, Marian after."""
        if model_type != self.config["model_type"]:
            return x
        weight, bias = (self.tensors[f"{name}.{part}"] for part in ("weight", "bias"))
        return self("LayerNormalization", x, weight, bias, epsilon=1e-5)

    def linear(self, x: str, name: str) -> str:
        y = self("MatMul", x, self.tensors[f"{name}.weight"].T)
        return self("Add", y, self.tensors[f"{name}.bias"])

    def attend(self, x: str, name: str, mask: str, cache: str, memory: str = "") -> str:
        """x and its attention to itself, or to `memory`, whose keys and values go to `cache`."""
        y = self.norm("pegasus", x, f"{name}_layer_norm")
        queries = self.heads(y, f"{name}.q_proj")
        keys = self.heads(memory or y, f"{name}.k_proj", cache and f"{cache}.key")
        values = self.heads(memory or y, f"{name}.v_proj", cache and f"{cache}.value")
        queries = self("Mul", queries, torch.tensor(self.d_k**-0.5))
        scores = self("MatMul", queries, self("Transpose", keys, perm=[0, 1, 3, 2]))
        heads = self("MatMul", self("Softmax", self("Add", scores, mask)), values)
        heads = self("Transpose", heads, perm=[0, 2, 1, 3])
        y = self("Reshape", heads, torch.tensor([0, 0, self.d_model]))
        x = self("Add", x, self.linear(y, f"{name}.out_proj"))
        return self.norm("marian", x, f"{name}_layer_norm")

    def heads(self, x: str, name: str, cache: str = "") -> str:
        """Queries, keys or values of each head; those of the past too, if there is a cache."""
        rows = self("Reshape", self.linear(x, name), torch.tensor([0, 0, self.h, self.d_k]))
        rows = self("Transpose", rows, perm=[0, 2, 1, 3])
        if not cache:
            return rows
        shape = BATCH, self.h, f"past_{cache}_length", self.d_k
        if self.n_kept:
            past = self.input(f"past_key_values.{cache}", *shape)
            rows = self("Concat", self("Slice", past, ZERO, self.n_kept, TWO), rows, axis=2)
        return self.output(rows, f"present.{cache}", *shape)
