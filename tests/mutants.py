"""One-line departures from the paper and from our own rules, each with the tests that must notice it.

`test_mutants.py` makes each change in a copy of the package and runs those tests on the copy. To keep this quick, one
server process (`python mutants.py`) imports PyTorch once and runs every copy's tests in a fork of itself.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """`original`, which occurs exactly once in `file` of the package, becomes `replacement`."""

    name: str
    file: str
    original: str
    replacement: str
    tests: tuple[str, ...]

    def apply(self, package: Path) -> None:
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.original) != 1:
            raise ValueError(
                f"{self.name}: {self.file} must hold this exactly once, "
                f"it does {text.count(self.original)} times:\n{self.original}"
            )
        path.write_text(text.replace(self.original, self.replacement), encoding="utf-8")


ATTENTION, STACKS, MODEL, EMBEDDING = (
    "model/attention.py",
    "model/stacks.py",
    "model/transformer.py",
    "model/embedding.py",
)
LOSS, OPTIMIZER, BATCHING, SEARCH = (
    "training/loss.py",
    "training/optimizer.py",
    "text/batching.py",
    "translation/search.py",
)
BLOCKWISE = "fast/blockwise_loss.py"
CHECKPOINT, TRAINING, CONFIG, FEED_FORWARD = (
    "checkpoint.py",
    "training/loop.py",
    "config.py",
    "model/feed_forward.py",
)
RUN, VALIDATION = "training/run.py", "translation/validation.py"
STATE, LOG, PRECISION, EVALUATION = (
    "training/state.py",
    "training/log.py",
    "training/precision.py",
    "translation/evaluation.py",
)

PARSING, COST, PACKING, INFERENCE, GRAPHS = (
    "parsing.py",
    "tables/cost.py",
    "fast/packing.py",
    "fast/decoder.py",
    "fast/cuda_graphs.py",
)
LINEAR, RECORDING = "fast/linear.py", "fast/graph_recording.py"
FILES, WEIGHTS, TEXT = "files.py", "weights.py", "text/parallel_text.py"

DECODING = "model/decoding_state.py"

HEADS = "model/test_attention.py::test_multi_head_attention_is_a_loop_over_heads"
BY_HAND = "model/test_attention.py::test_equation_1_by_hand"
MASKS = "model/test_attention.py::test_true_means_may_look"
POST_NORM = "model/test_stacks.py::test_post_norm_is_layer_norm_of_the_sum"
DROPOUT = "model/test_stacks.py::test_dropout_is_where_section_5_4_puts_it_and_nowhere_else"
DROPOUT_BEFORE_SUM = (
    "model/test_stacks.py::test_dropout_falls_on_the_sublayers_output_before_the_sum"
)
ORACLE = "model/test_oracles.py::test_the_whole_model_equals_pytorchs_transformer"
GRADIENTS = "model/test_oracles.py::test_gradients_equal_pytorchs"
STEPS = "model/test_transformer.py::test_cached_steps_equal_one_forward"
FUTURE = "model/test_transformer.py::test_the_future_is_invisible"
SEES = "model/test_transformer.py::test_every_position_sees_itself_its_past_and_the_whole_source"
PADDING = "model/test_transformer.py::test_padding_added_to_a_batch_changes_nothing"
PACKED = "fast/test_packing.py::test_a_packed_batch_has_the_loss_and_the_gradients_of_a_padded_one"
RECORDED = "fast/test_cuda_graphs.py::test_recorded_steps_are_the_models_own"
RECORDER = "fast/test_cuda_graphs.py::test_a_step_is_recorded_after_one_that_is_not_and_all_share_a_stream_and_a_pool"
SEARCH_STEPS = "fast/test_decoder.py::test_steps_made_for_search_are_the_models_own"
INT8_STEPS = "fast/test_decoder.py::test_steps_of_an_8_bit_model_made_for_search_are_its_own"
REORDER = "model/test_transformer.py::test_reorder_makes_each_hypothesis_continue_its_parent"
LONG = "model/test_transformer.py::test_a_long_walk_of_hypotheses_gives_what_forward_gives_each_of_them"
KEEP = "model/test_transformer.py::test_keep_drops_the_other_sentences"
TYING = "model/test_transformer.py::test_one_matrix_serves_three_times_and_gathers_every_gradient"
REPAIR = "test_parsing.py::test_a_repair_by_hand"
SAME_BRACKETS = "test_parsing.py::test_what_evalb_does_not_tell_apart"
CHAIN = "tables/test_cost.py::test_a_chain_is_as_long_as_what_waits"
TABLE_3 = "test_paper.py::test_table_3_parameters_with_one_vocabulary"
FORMULA = "model/test_embedding.py::test_positional_encoding_is_the_printed_formula"
ROTATION = "test_paper.py::test_positions_shifted_by_k_are_positions_rotated"
SCALED = (
    "model/test_embedding.py::test_embedding_is_scaled_by_sqrt_d_model_and_the_projection_is_not"
)
LOSS_ORACLE = "training/test_loss.py::test_value_and_gradient_equal_pytorchs_cross_entropy"
BLOCK_LOSS = "training/test_loss.py::test_the_loss_in_blocks_equals_pytorchs_over_all_logits"
RATES = "training/test_loop.py::test_the_first_update_has_the_rate_of_step_1"
MEAN_LOSS = (
    "training/test_loop.py::test_the_gradient_is_that_of_the_mean_loss_over_real_target_tokens"
)
HALVES = "training/test_loop.py::test_two_half_batches_equal_one_whole_batch"
OVERFLOW = "training/test_loop.py::test_a_step_that_overflows_changes_nothing_but_the_scale"
RESUME_FP16 = "training/test_loop.py::test_a_stopped_run_in_float16_resumes_bit_for_bit"
ON_GPU = "training/test_loop.py::test_a_step_on_a_gpu_mixes_no_devices_and_waits_for_the_log_alone"
RESUME = "training/test_loop.py::test_a_stopped_run_resumes_bit_for_bit"
SHIFTED = "text/test_batching.py::test_outputs_are_shifted_right_by_one"
EPOCHS = "text/test_batching.py::test_shuffling_moves_whole_batches_and_pairs_between_them"
EXHAUSTIVE = "translation/test_search.py::test_a_wide_beam_finds_what_exhaustive_search_finds"
PLAIN = "translation/test_search.py::test_narrow_beams_equal_the_plain_algorithm"
EARLY = "translation/test_search.py::test_early_stopping_loses_nothing"
LIMITS = "translation/test_search.py::test_outputs_end_at_source_length_plus_max_extra"
PENALTY = "translation/test_search.py::test_length_penalty_is_wu_et_al_equation_14"
AVERAGE = "test_checkpoint.py::test_the_average_is_the_mean_of_the_last_checkpoints"
DEFAULTS = "test_config.py::test_defaults_are_the_papers"
DEPARTURES = "test_config.py::test_departures_from_the_paper_are_off"

MUTANTS = [
    # Attention (3.2)
    Mutant(
        "scores are not divided by sqrt(d_k)",
        ATTENTION,
        "k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        "k.transpose(-2, -1)",
        (BY_HAND, "test_paper.py::test_worked_example_of_attention"),
    ),
    Mutant(
        "the model's scores are not divided by sqrt(d_k)",
        ATTENTION,
        "scale=self.scale,",
        "scale=1.0,",
        (HEADS, ORACLE),
    ),
    Mutant(
        "scores are divided by sqrt(d_model)",
        ATTENTION,
        "scale=self.scale,",
        "scale=x.size(-1) ** -0.5,",
        (HEADS, ORACLE),
    ),
    Mutant(
        "the softmax runs over the queries",
        ATTENTION,
        "softmax(dim=-1)",
        "softmax(dim=-2)",
        (BY_HAND,),
    ),
    Mutant("the mask is inverted", ATTENTION, "masked_fill(~mask", "masked_fill(mask", (BY_HAND,)),
    Mutant(
        "masked scores become 0 instead of minus infinity",
        ATTENTION,
        "masked_fill(~mask, -math.inf)",
        "masked_fill(~mask, 0.0)",
        (BY_HAND, "model/test_attention.py::test_weights_are_distributions_over_visible_keys"),
    ),
    Mutant(
        "the padding mask shows padding only",
        ATTENTION,
        "(tokens != pad_id)",
        "(tokens == pad_id)",
        (MASKS, PADDING),
    ),
    Mutant("the causal mask hides the present", ATTENTION, ".tril()", ".tril(-1)", (MASKS,)),
    Mutant("the causal mask shows the next token", ATTENTION, ".tril()", ".tril(1)", (MASKS,)),
    Mutant(
        "heads take every h-th column",
        ATTENTION,
        "x.unflatten(-1, (self.h, -1)).transpose(1, 2)",
        "x.unflatten(-1, (-1, self.h)).permute(0, 3, 1, 2)",
        (HEADS,),
    ),
    Mutant(
        "attention weights are dropped in training",
        ATTENTION,
        "self.dropout if self.training else 0.0",
        "0.1 if self.training else 0.0",
        (DROPOUT,),
    ),
    Mutant(
        "projections have biases by default",
        CONFIG,
        "bias: bool = False",
        "bias: bool = True",
        (
            DEPARTURES,
            "model/test_transformer.py::test_attention_has_no_bias_and_the_feed_forward_network_has",
        ),
    ),
    # Layers and stacks (3.1, 3.3, 5.4)
    Mutant(
        "pre-norm for post-norm",
        STACKS,
        "self.norm(x + self.dropout(sublayer(x)))",
        "x + self.dropout(sublayer(self.norm(x)))",
        (POST_NORM, ORACLE),
    ),
    Mutant(
        "no residual connection",
        STACKS,
        "self.norm(x + self.dropout(sublayer(x)))",
        "self.norm(self.dropout(sublayer(x)))",
        (POST_NORM, ORACLE),
    ),
    Mutant(
        "the norm is taken before the sum",
        STACKS,
        "self.norm(x + self.dropout(sublayer(x)))",
        "x + self.norm(self.dropout(sublayer(x)))",
        (POST_NORM, ORACLE),
    ),
    Mutant(
        "dropout falls on the sum",
        STACKS,
        "self.norm(x + self.dropout(sublayer(x)))",
        "self.norm(self.dropout(x + sublayer(x)))",
        (DROPOUT, DROPOUT_BEFORE_SUM),
    ),
    Mutant(
        "dropout falls twice",
        STACKS,
        "self.norm(x + self.dropout(sublayer(x)))",
        "self.norm(x + self.dropout(self.dropout(sublayer(x))))",
        (DROPOUT,),
    ),
    Mutant(
        "no dropout on sub-layers",
        STACKS,
        "self.norm(x + self.dropout(sublayer(x)))",
        "self.norm(x + sublayer(x))",
        (DROPOUT, DROPOUT_BEFORE_SUM),
    ),
    Mutant(
        "an extra norm after the post-norm stacks",
        STACKS,
        'nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()',
        "nn.LayerNorm(config.d_model)",
        ("model/test_stacks.py::test_every_stack_ends_in_one_normalisation",),
    ),
    Mutant(
        "pre-norm stacks end without a norm",
        STACKS,
        'nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()',
        "nn.Identity()",
        ("model/test_stacks.py::test_every_stack_ends_in_one_normalisation",),
    ),
    Mutant(
        "one layer instance N times",
        STACKS,
        "            EncoderLayer(config) for _ in range(config.N)\n",
        "            [EncoderLayer(config)] * config.N\n",
        ("model/test_stacks.py::test_layers_share_nothing", TABLE_3),
    ),
    Mutant(
        "the decoder sees the future",
        STACKS,
        "self.self_attention(y, y, past, causal=True)",
        "self.self_attention(y, y, past)",
        (FUTURE, STEPS, ORACLE),
    ),
    Mutant(
        "cross-attention looks at the target",
        STACKS,
        "self.cross_attention(y, memory, memory_mask)",
        "self.cross_attention(y, y, causal=True)",
        (SEES, ORACLE),
    ),
    Mutant(
        "cross-attention sees the source's padding",
        STACKS,
        "self.cross_attention(y, memory, memory_mask)",
        "self.cross_attention(y, memory)",
        (PADDING, ORACLE),
    ),
    Mutant(
        "the encoder sees padding",
        STACKS,
        "self.self_attention(y, y, mask)",
        "self.self_attention(y, y)",
        (PADDING, ORACLE),
    ),
    Mutant(
        "a step sees the source's padding",
        DECODING,
        "x, keys, values, self.memory_mask",
        "x, keys, values",
        (STEPS,),
    ),
    Mutant(
        "packed sentences are attended to in one another's places",
        PACKING,
        "self.rows[self.positions] = ",
        "self.rows[self.positions.flip(0)] = ",
        (PACKED,),
    ),
    Mutant(
        "a packed decoder sees the future", PACKING, "self.mask, causal)", "self.mask)", (PACKED,)
    ),
    Mutant(
        "a packed decoder sees the source's padding",
        PACKING,
        "self.mask, causal)",
        "None, causal)",
        (PACKED,),
    ),
    Mutant(
        "a packed query of padding has a gradient",
        PACKING,
        "grad_RD.new_zeros(",
        "grad_RD.new_ones(",
        ("fast/test_packing.py::test_the_gradients_of_packing_are_those_of_indexing", PACKED),
    ),
    Mutant(
        "in steps for search the sum forgets its residual",
        INFERENCE,
        "norm(x_RD + sublayer(x_RD, *of))",
        "norm(sublayer(x_RD, *of))",
        (SEARCH_STEPS,),
    ),
    Mutant(
        "steps for search see the source's padding",
        INFERENCE,
        "attn_mask=mask, ",
        "",
        (SEARCH_STEPS,),
    ),
    Mutant(
        "many sentences see their source's padding",
        INFERENCE,
        "scores if mask is None else scores.add_(mask)",
        "scores",
        (SEARCH_STEPS,),
    ),
    Mutant(
        "steps for search stay at the first position",
        INFERENCE,
        "self.positions(1, state.position)",
        "self.positions(1, 0)",
        (SEARCH_STEPS,),
    ),
    Mutant(
        "three products in 8 bits as one have no bias",
        LINEAR,
        "self.of(Int8Linear(weight, bias))",
        "self.of(Int8Linear(weight))",
        (INT8_STEPS,),
    ),
    Mutant(
        "weights are rounded to 16 bits for few rows",
        LINEAR,
        " and torch.equal(weight.half().float(), weight)",
        "",
        ("fast/test_decoder.py::test_only_numbers_that_float16_holds_have_a_copy",),
    ),
    Mutant(
        "copies in 16 bits stay when weights are loaded",
        INFERENCE,
        "if self.parameter_versions != [",
        "if False and self.parameter_versions != [",
        ("fast/test_decoder.py::test_weights_that_are_loaded_after_the_copy_count",),
    ),
    Mutant(
        "a model made ready keeps its first weights",
        INFERENCE,
        "copy.copy_(parameter)",
        "pass",
        ("fast/test_decoder.py::test_weights_that_change_count_in_every_model_made_ready",),
    ),
    Mutant(
        "a graph sees what its buffers held before",
        GRAPHS,
        "self.target_mask[..., filled:] = -torch.inf",
        "self.target_mask[..., filled:] = 0",
        (RECORDED,),
    ),
    Mutant(
        "a graph writes where its first step did",
        GRAPHS,
        "self.recorded = self.recorded or record(",
        "self.slots = self.slots.clone()\n        self.recorded = self.recorded or record(",
        (RECORDED,),
    ),
    Mutant(
        "a step's logits change with the next step",
        GRAPHS,
        "logits[:n_sentences, :n_hypotheses].clone()",
        "logits[:n_sentences, :n_hypotheses]",
        ("fast/test_cuda_graphs.py::test_the_logits_of_a_step_stay_as_they_were",),
    ),
    Mutant(
        "two searches write in one buffer",
        GRAPHS,
        "                self.unused.remove(buffers)\n",
        "",
        (
            "fast/test_cuda_graphs.py::test_buffers_that_nothing_uses_are_kept_up_to_a_number_of_bytes",
        ),
    ),
    Mutant(
        "the decoder's layers change their memories",
        INFERENCE,
        "zip(heads[::2], heads[1::2], strict=True)",
        "zip(heads[-2::-2], heads[::-2], strict=True)",
        (SEARCH_STEPS,),
    ),
    Mutant(
        "buffers keep what a broken model left",
        GRAPHS,
        "                buffers.clear()\n",
        "",
        ("fast/test_cuda_graphs.py::test_what_a_broken_model_left_in_the_buffers_is_gone",),
    ),
    Mutant(
        "buffers grow once for a wide beam",
        GRAPHS,
        "while state.caches[0].room",
        "if state.caches[0].room",
        ("fast/test_cuda_graphs.py::test_a_beam_that_is_wider_than_the_first_buffers",),
    ),
    Mutant(
        "a graph for each width of the beam",
        GRAPHS,
        "state.width = max(state.width, n_hypotheses)",
        "state.width = n_hypotheses",
        ("fast/test_cuda_graphs.py::test_a_file_of_any_length_makes_a_handful_of_graphs",),
    ),
    Mutant(
        "a first step does not wait for what it reads",
        RECORDING,
        "        self.stream.wait_stream(torch.cuda.current_stream(self.device))\n",
        "",
        (RECORDER,),
    ),
    Mutant(
        "each graph has memory and a stream of its own",
        RECORDING,
        "(graph, pool=self.pool, stream=self.stream)",
        "(graph)",
        (RECORDER,),
    ),
    Mutant(
        "search decodes a model in training",
        INFERENCE,
        "is_ready = not self.model.training",
        "is_ready = True",
        ("fast/test_decoder.py::test_no_search_with_dropout",),
    ),
    Mutant(
        "what dropout leaves is not made larger",
        "model/dropout.py",
        "return x * keep.mul_(2**16 / (2**16 - n_dropped))",
        "return x * keep",
        ("model/test_dropout.py::test_the_share_that_is_dropped_is_p_and_the_mean_stays",),
    ),
    Mutant(
        "the feed-forward network is linear",
        FEED_FORWARD,
        "self.activation(self.W_1(x))",
        "self.W_1(x)",
        ("model/test_feed_forward.py::test_equation_2_by_hand", ORACLE),
    ),
    Mutant(
        "dropout inside the feed-forward network",
        CONFIG,
        "ffn_dropout: float = 0.0",
        "ffn_dropout: float = 0.1",
        (DEPARTURES,),
    ),
    Mutant(
        "hypotheses see each other's new tokens",
        DECODING,
        "-torch.inf).fill_diagonal_(0)",
        "0.0)",
        (REORDER,),
    ),
    Mutant(
        "hypotheses continue what they did before",
        DECODING,
        "self.target_mask[rows, :, parents].transpose(1, 2)",
        "self.target_mask.expand(-1, -1, n_hypotheses, -1)[:, :, :n_hypotheses]",
        (REORDER,),
    ),
    Mutant(
        "what is forgotten is not what nobody continues",
        DECODING,
        "argsort(dim=1, descending=True, ",
        "argsort(dim=1, ",
        (LONG,),
    ),
    Mutant(
        "the mask keeps the order of before",
        DECODING,
        "target_mask.gather(3, index)",
        "target_mask[..., :n_kept]",
        (LONG,),
    ),
    Mutant(
        "dropped sentences leave their mask behind",
        DECODING,
        "self.target_mask[sentences]",
        "self.target_mask[: len(sentences)]",
        (LONG,),
    ),
    Mutant(
        "dropped sentences leave their memory behind",
        DECODING,
        "self.memory_values.index_select(0, sentences)",
        "self.memory_values[: len(sentences)]",
        (KEEP,),
    ),
    # Embeddings, positions, softmax (3.4, 3.5)
    Mutant(
        "embeddings are not multiplied by sqrt(d_model)",
        EMBEDDING,
        " * math.sqrt(self.weight.size(1))",
        "",
        (SCALED, ORACLE),
    ),
    Mutant(
        "logits are multiplied by sqrt(d_model)",
        EMBEDDING,
        "return F.linear(x, self.weight)",
        "return F.linear(x, self.weight) * math.sqrt(self.weight.size(1))",
        (SCALED, ORACLE),
    ),
    Mutant(
        "positions use 2 * 2i",
        EMBEDDING,
        "torch.arange(0, d_model, 2, dtype=torch.float64) / d_model",
        "2 * torch.arange(0, d_model, 2, dtype=torch.float64) / d_model",
        (FORMULA, "test_paper.py::test_wavelengths_run_from_2_pi_to_60_611"),
    ),
    Mutant(
        "sine and cosine change places",
        EMBEDDING,
        "torch.stack([angle.sin(), angle.cos()]",
        "torch.stack([angle.cos(), angle.sin()]",
        (FORMULA, ROTATION),
    ),
    Mutant(
        "sines first, then cosines",
        EMBEDDING,
        "torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)",
        "torch.cat([angle.sin(), angle.cos()], dim=1)",
        (FORMULA, ROTATION),
    ),
    Mutant("wavelengths end at 1000", EMBEDDING, "10000.0**", "1000.0**", (FORMULA, ROTATION)),
    Mutant(
        "positions are counted from 1",
        EMBEDDING,
        "torch.arange(length, dtype=torch.float64)[:, None]",
        "torch.arange(1, length + 1, dtype=torch.float64)[:, None]",
        (FORMULA,),
    ),
    Mutant(
        "the authors' positions end where the paper's do",
        EMBEDDING,
        "max(d_model // 2 - 1, 1)",
        "(d_model // 2)",
        ("model/test_embedding.py::test_the_authors_positions_reach_10000_times_2_pi",),
    ),
    Mutant(
        "positions that grow are float32 on the CPU",
        EMBEDDING,
        "longer.to(self.table.device, self.table.dtype)",
        "longer",
        ("model/test_embedding.py::test_positions_that_grow_stay_on_their_device_in_their_type",),
    ),
    Mutant(
        "glorot is scaled too",
        MODEL,
        'if self.config.initialization == "scaled" else 1.0',
        "if True else 1.0",
        ("model/test_transformer.py::test_initial_values",),
    ),
    Mutant(
        "no dropout on embeddings",
        MODEL,
        "self.dropout(self.embedding(tokens) + self.positions(tokens.size(1), start))",
        "self.embedding(tokens) + self.positions(tokens.size(1), start)",
        (DROPOUT,),
    ),
    Mutant(
        "positions are added after the dropout",
        MODEL,
        "self.dropout(self.embedding(tokens) + self.positions(tokens.size(1), start))",
        "self.dropout(self.embedding(tokens)) + self.positions(tokens.size(1), start)",
        (DROPOUT,),
    ),
    Mutant(
        "the softmax has a matrix of its own",
        MODEL,
        "self.embedding = SharedEmbedding(config.vocab_size, config.d_model)",
        "self.embedding = SharedEmbedding(config.vocab_size, config.d_model); self.own = nn.Linear(config.d_model, "
        "config.vocab_size, bias=False); self.embedding.logits = self.own.forward",
        (TYING, TABLE_3),
    ),
    Mutant(
        "the softmax passes no gradient to the shared matrix",
        EMBEDDING,
        "return F.linear(x, self.weight)",
        "return F.linear(x, self.weight.detach())",
        (TYING, GRADIENTS),
    ),
    Mutant(
        "a step stands one position too far",
        MODEL,
        "start=state.position)",
        "start=state.position + 1)",
        (STEPS,),
    ),
    # Loss and schedule (5.3, 5.4)
    Mutant(
        "smoothing leaves out the true token",
        LOSS,
        "eps_ls * (log_z_N - logits_NV.mean(dim=-1))",
        "eps_ls * (logits_NV.size(-1) * (log_z_N - logits_NV.mean(dim=-1)) - nll_N) / (logits_NV.size(-1) - 1)",
        (LOSS_ORACLE,),
    ),
    Mutant(
        "the gradient smooths over V - 1",
        LOSS,
        "ctx.eps_ls / logits_NV.size(-1)",
        "ctx.eps_ls / (logits_NV.size(-1) - 1)",
        (LOSS_ORACLE, "training/test_loss.py::test_the_gradient_passes_gradcheck"),
    ),
    Mutant(
        "the blockwise gradient smooths over V - 1",
        BLOCKWISE,
        "share = eps_ls / weight_VD.size(0)",
        "share = eps_ls / (weight_VD.size(0) - 1)",
        (BLOCK_LOSS,),
    ),
    Mutant(
        "the true token gets eps and the others 1 - eps",
        BLOCKWISE,
        "(1 - eps_ls) * nll_M1.sum() + eps_ls * (nll_M1",
        "eps_ls * nll_M1.sum() + (1 - eps_ls) * (nll_M1",
        (BLOCK_LOSS,),
    ),
    Mutant(
        "padding is learned",
        LOSS,
        "return loss_N.masked_fill(padding_N, 0.0).sum()",
        "return loss_N.sum()",
        (LOSS_ORACLE, "training/test_loss.py::test_padding_adds_nothing_and_has_no_gradient"),
    ),
    Mutant(
        "padding is learned on the CPU",
        BLOCKWISE,
        "(target_N != pad_id).nonzero()",
        "(target_N >= 0).nonzero()",
        (BLOCK_LOSS, MEAN_LOSS),
    ),
    Mutant(
        "the learning rate is one step late",
        RUN,
        "noam_learning_rate(step, d_model",
        "noam_learning_rate(max(1, step - 1), d_model",
        (RATES,),
    ),
    Mutant(
        "the first step is step 2",
        RUN,
        "noam_learning_rate(step, d_model",
        "noam_learning_rate(step + 1, d_model",
        (RATES,),
    ),
    Mutant(
        "the larger branch of equation 3",
        OPTIMIZER,
        "min(step**-0.5",
        "max(step**-0.5",
        ("training/test_optimizer.py::test_equation_3", "test_paper.py::test_equation_3_values"),
    ),
    Mutant(
        "the rate does not depend on d_model",
        OPTIMIZER,
        "factor * d_model**-0.5 * min",
        "factor * min",
        ("training/test_optimizer.py::test_equation_3", "test_paper.py::test_equation_3_values"),
    ),
    Mutant(
        "Adam's usual beta2", CONFIG, "beta2: float = 0.98", "beta2: float = 0.999", (DEFAULTS,)
    ),
    Mutant(
        "Adam's usual eps",
        OPTIMIZER,
        "eps=config.adam_eps",
        "eps=1e-8",
        ("training/test_optimizer.py::test_adam_by_hand",),
    ),
    # Batches (5.1)
    Mutant(
        "padding counts as tokens",
        BATCHING,
        "n_tokens=sum(map(len, targets)) + len(targets)",
        "n_tokens=len(targets) * (1 + max(map(len, targets)))",
        (SHIFTED, MEAN_LOSS),
    ),
    Mutant(
        "the target is not shifted",
        BATCHING,
        "target_in=pad(targets, ids.pad_id, before=[ids.bos_id]",
        "target_in=pad(targets, ids.pad_id, after=[ids.eos_id]",
        (SHIFTED,),
    ),
    Mutant(
        "the source has no eos",
        BATCHING,
        "pad(sentences, ids.pad_id, after=[ids.eos_id], ",
        "pad(sentences, ids.pad_id, ",
        (SHIFTED,),
    ),
    Mutant(
        "rounding up may fill a batch too full",
        BATCHING,
        "(padded(len(source) + 1), padded(len(target) + 1))",
        "(len(source) + 1, len(target) + 1)",
        ("text/test_batching.py::test_lengths_rounded_up_hold_the_same_pairs",),
    ),
    Mutant(
        "a fingerprint does not see where a sentence ends",
        BATCHING,
        'digest.update(array("q", map(len, texts)).tobytes())',
        "pass",
        ("text/test_batching.py::test_other_pairs_have_another_fingerprint",),
    ),
    Mutant(
        "every epoch has the same order",
        BATCHING,
        'f"{seed} {epoch}"',
        'f"{seed}"',
        (EPOCHS, "text/test_batching.py::test_order_depends_on_seed_and_epoch_alone"),
    ),
    Mutant(
        "batches go from short to long", BATCHING, "generator.shuffle(groups)", "pass", (EPOCHS,)
    ),
    Mutant(
        "batches may be one sentence too large",
        BATCHING,
        "longest * (len(groups[-1]) + 1)",
        "longest * len(groups[-1])",
        ("text/test_batching.py::test_no_side_exceeds_max_tokens_and_batches_are_full",),
    ),
    Mutant(
        "a resumed epoch starts again",
        BATCHING,
        "groups[start:]",
        "groups",
        ("text/test_batching.py::test_an_epoch_resumes_after_any_batch", RESUME),
    ),
    Mutant(
        "joined targets come in the other order",
        BATCHING,
        "[*y_i, *y_j]",
        "[*y_j, *y_i]",
        (
            "text/test_batching.py::test_joined_pairs_are_two_random_pairs_in_the_same_order_on_both_sides",
        ),
    ),
    Mutant(
        "each chunk of pairs draws with the same seed",
        BATCHING,
        "seeds.getrandbits(31)",
        "seed",
        (
            "text/test_batching.py::test_pairs_are_encoded_some_at_a_time_and_each_draws_its_own_pieces",
        ),
    ),
    Mutant(
        "every epoch joins the same pairs",
        TRAINING,
        '"{seed} concatenate"',
        '"concatenate"',
        ("training/test_loop.py::test_an_epoch_has_every_pair_and_as_many_joined_ones_drawn_anew",),
    ),
    # Training (5.2)
    Mutant(
        "a GPU is asked where the padding is",
        RUN,
        "Packing(batch.source != pad_id)",
        "Packing((batch.source != pad_id).to(device))",
        ("training/test_loop.py::test_a_step_on_a_gpu_waits_for_no_value",),
    ),
    Mutant(
        "packed targets see their future",
        PACKING,
        "(-1, 0) if causal else (-1, -1)",
        "(-1, -1)",
        ("fast/test_packing.py::test_a_kernel_for_different_lengths_gets_what_it_needs",),
    ),
    Mutant(
        "packed sentences start where the source's do",
        PACKING,
        "packing.starts,\n",
        "of_memory.starts,\n",
        ("fast/test_packing.py::test_a_kernel_for_different_lengths_gets_what_it_needs",),
    ),
    Mutant(
        "each micro-batch is normalised alone",
        RUN,
        "(loss / n_tokens).backward()",
        "(loss / batch.n_tokens / len(batches)).backward()",
        (HALVES, MEAN_LOSS),
    ),
    Mutant(
        "float16 is not scaled",
        RUN,
        "self.scaler.scale(loss / n_tokens)",
        "(loss / n_tokens)",
        (OVERFLOW,),
    ),
    Mutant(
        "float16 steps whatever overflows",
        RUN,
        "self.scaler.step(self.optimizer)",
        "self.scaler.unscale_(self.optimizer); self.optimizer.step()",
        (OVERFLOW,),
    ),
    Mutant("the scale stays as it is", RUN, "        self.scaler.update()\n", "", (OVERFLOW,)),
    Mutant(
        "scaled gradients are clipped",
        RUN,
        "            self.scaler.unscale_(self.optimizer)\n",
        "",
        ("training/test_loop.py::test_clipping_measures_gradients_that_are_not_scaled",),
    ),
    Mutant(
        "the scale is not resumed",
        STATE,
        "run.scaler.load_state_dict(scaler)",
        "pass",
        (RESUME_FP16,),
    ),
    Mutant(
        "a log line asks the GPU twice",
        LOG,
        "torch.stack(values).tolist()",
        "[value.item() for value in values]",
        (ON_GPU,),
    ),
    Mutant(
        "a batch is copied from memory that may move",
        BATCHING,
        "t.pin_memory() if on_gpu else t",
        "t",
        (ON_GPU,),
    ),
    Mutant(
        "a step waits to learn whether it was skipped",
        RUN,
        "        self.scaler.update()\n",
        "        self.scaler.update(); self.scaler.get_scale()\n",
        (ON_GPU,),
    ),
    Mutant(
        "cuDNN may attend",
        PRECISION,
        "enable_cudnn_sdp(False)",
        "enable_cudnn_sdp(True)",
        (ON_GPU,),
    ),
    Mutant(
        "bf16 by emulation counts",
        PRECISION,
        "capability >= (8, 0)",
        "torch.cuda.is_bf16_supported()",
        ("training/test_loop.py::test_auto_is_the_half_precision_that_the_gpu_has",),
    ),
    Mutant(
        "another GPU is asked for bf16",
        PRECISION,
        "get_device_capability(device)",
        "get_device_capability(torch.device('cuda', 0))",
        ("training/test_loop.py::test_auto_is_the_half_precision_that_the_gpu_has",),
    ),
    Mutant(
        "compile does nothing",
        RUN,
        "        if config.compile:\n",
        "        if False:\n",
        ("training/test_loop.py::test_compile_is_what_a_step_goes_through",),
    ),
    Mutant(
        "the state is saved before the weights",
        STATE,
        """\
    if to_average:
        name =""",
        """\
    checkpoint.save_tensors(out / STATE_FILE, _tensors(run), _metadata(run))
    if to_average:
        name =""",
        ("training/test_loop.py::test_a_checkpoint_that_fails_at_any_file_is_written_again",),
    ),
    Mutant(
        "validation searches with a beam",
        VALIDATION,
        "beam_size=1",
        "beam_size=4",
        ("training/test_loop.py::test_valid_bleu_is_that_of_greedy_search",),
    ),
    Mutant(
        "validation comes before saving",
        TRAINING,
        "elif validate is not None and is_due(",
        "elif False and is_due(",
        ("training/test_loop.py::test_a_validation_that_fails_costs_no_step_and_is_made_up_for",),
    ),
    Mutant(
        "the last step is not logged",
        TRAINING,
        "if is_due(train_config.log_every):",
        "if run.steps % train_config.log_every == 0:",
        ("training/test_loop.py::test_the_last_step_is_logged_wherever_it_falls",),
    ),
    Mutant(
        "validation takes its seconds from training",
        LOG,
        "self.since += time.perf_counter() - began",
        "pass",
        ("training/test_loop.py::test_seconds_of_validation_are_not_those_of_training",),
    ),
    Mutant(
        "sums that are not logged are not saved",
        STATE,
        "run.sums.copy_(",
        "(",
        ("training/test_loop.py::test_ctrl_c_finishes_the_step_and_saves",),
    ),
    Mutant(
        "a resumed run forgets its corpus",
        TRAINING,
        'corpus = corpus or checkpoint.read_config(out).get("corpus", "")',
        "pass",
        ("training/test_loop.py::test_a_resumed_run_keeps_the_name_of_its_corpus",),
    ),
    Mutant(
        "a run goes on with any pairs",
        STATE,
        "not known or known == run.fingerprint",
        "True",
        ("training/test_loop.py::test_a_run_does_not_go_on_with_other_pairs",),
    ),
    Mutant(
        "a run goes on with any tokenizer",
        CHECKPOINT,
        "stored.read_bytes() == tokenizer.model_bytes,",
        "True,",
        ("training/test_loop.py::test_weights_keep_the_tokenizer_that_they_were_trained_with",),
    ),
    Mutant(
        "batches that were drawn and not used are lost",
        STATE,
        "epoch, n_batches = run.position",
        "epoch, n_batches = run.epoch, run.n_batches",
        ("training/test_loop.py::test_ctrl_c_does_not_wait_for_a_corpus_to_be_encoded",),
    ),
    Mutant(
        "a second Ctrl-C saves half a step",
        TRAINING,
        " and not signals.broke_in",
        "",
        ("training/test_loop.py::test_a_second_ctrl_c_stops_at_once_and_saves_nothing_half_done",),
    ),
    Mutant(
        "perplexity is that of float32",
        EVALUATION,
        "model.logits(x_ND[rows])",
        "F.linear(x_ND[rows], model.embedding.weight)",
        ("translation/test_evaluation.py::test_a_model_in_8_bits_is_scored_as_it_translates",),
    ),
    Mutant(
        "gradients are made for nothing",
        BLOCKWISE,
        "torch.is_grad_enabled() and ",
        "",
        (
            "training/test_loss.py::test_the_loss_in_blocks_makes_gradients_only_where_they_are_wanted",
        ),
    ),
    Mutant(
        "gradients are never cleared",
        RUN,
        "self.optimizer.zero_grad()",
        "pass",
        ("training/test_loop.py::test_gradients_do_not_leak_into_the_next_step",),
    ),
    Mutant(
        "Adam forgets its moments on resuming",
        STATE,
        'exp_avg_sq")\n',
        'exp_avg_sq")\n    return\n',
        (RESUME,),
    ),
    Mutant(
        "a GPU's random state is not restored",
        STATE,
        'torch.cuda.set_rng_state(tensors["random.cuda"], run.device)',
        "pass",
        ("training/test_loop.py::test_the_state_of_a_gpus_generator_comes_back",),
    ),
    Mutant(
        "dropout's random state is not resumed",
        STATE,
        'torch.set_rng_state(tensors["random.cpu"])',
        "pass",
        (RESUME,),
    ),
    Mutant(
        "dropout stays off after validation",
        VALIDATION,
        "model.train(was_training)",
        "pass",
        ("training/test_loop.py::test_validation_scores_held_out_text_and_changes_nothing",),
    ),
    # Averaging and checkpoints (6.1)
    Mutant("the sum for the average", WEIGHTS, "(tensor / len(paths))", "tensor", (AVERAGE,)),
    Mutant(
        "the first checkpoints are averaged",
        CHECKPOINT,
        "paths += found[-last:]",
        "paths += found[:last]",
        (AVERAGE,),
    ),
    Mutant(
        "files are moved before they are on disk",
        FILES,
        "os.fsync(file.fileno())",
        "pass",
        ("test_checkpoint.py::test_files_are_safe_on_disk_before_they_take_their_place",),
    ),
    Mutant(
        "any tokenizer goes with any model",
        CHECKPOINT,
        "        tokenizer.vocab_size == config.vocab_size,\n",
        "        True,\n",
        ("test_checkpoint.py::test_a_tokenizer_of_another_size_is_refused",),
    ),
    Mutant(
        "what config.json promises is built",
        WEIGHTS,
        '    with torch.device("meta"):\n',
        "    if True:\n",
        ("test_checkpoint.py::test_a_small_config_cannot_take_much_memory",),
    ),
    Mutant(
        "unlike models are averaged",
        CHECKPOINT,
        "if ours[name] != theirs[name]\n",
        "if False\n",
        ("test_checkpoint.py::test_equal_shapes_are_no_equal_models",),
    ),
    Mutant(
        "an average may overwrite a run",
        CHECKPOINT,
        'require(not holds, f"{directory} holds a training run',
        'require(True, f"{directory} holds a training run',
        ("test_checkpoint.py::test_an_average_never_overwrites_a_run",),
    ),
    Mutant(
        "loaded weights are the file's pages",
        CHECKPOINT,
        "tensor.to(torch.float32, copy=True)",
        "tensor.to(torch.float32)",
        ("test_checkpoint.py::test_a_loaded_model_has_memory_of_its_own_and_computes_and_learns",),
    ),
    Mutant(
        "any model may be what a killed run left",
        CHECKPOINT,
        "steps[0] <= min(config",
        "steps[0] >= min(config",
        (
            "test_checkpoint.py::test_a_model_that_may_be_wanted_is_not_taken_for_what_a_killed_run_left",
        ),
    ),
    Mutant(
        "files of living processes are removed",
        FILES,
        "and not _is_alive(int(match[2]))",
        "",
        (
            "test_checkpoint.py::test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not",
        ),
    ),
    Mutant(
        "all may read every file",
        FILES,
        "temporary.chmod(mode)",
        "temporary.chmod(0o644)",
        ("test_checkpoint.py::test_the_umask_says_who_may_read_the_files",),
    ),
    # Text (5.1)
    Mutant(
        "a byte order mark is text",
        TEXT,
        "line.removeprefix(mark)",
        "line",
        (
            "test_cli.py::test_a_byte_order_mark_is_no_text_to_translate_and_none_to_evaluate",
            "text/test_parallel_text.py::test_windows_line_ends_and_byte_order_mark_are_no_text",
        ),
    ),
    Mutant(
        "every line loses its byte order mark",
        TEXT,
        '        mark = b""\n',
        "",
        ("text/test_parallel_text.py::test_a_mark_elsewhere_than_at_the_beginning_is_text",),
    ),
    Mutant(
        "gzip is unpacked without end",
        "text/downloads.py",
        "                size += len(chunk)\n",
        "",
        ("text/test_downloads.py::test_nothing_is_unpacked_or_read_without_end",),
    ),
    Mutant(
        "a redirect gets the password too",
        "text/package_index.py",
        "request.add_unredirected_header(",
        "request.add_header(",
        ("text/test_package_index.py::test_a_password_stays_with_its_host",),
    ),
    # Search (6.1)
    Mutant(
        "a 6 for the 5 in the length penalty",
        SEARCH,
        "((5 + length) / 6) ** alpha",
        "((6 + length) / 6) ** alpha",
        (PENALTY, EXHAUSTIVE),
    ),
    Mutant(
        "the length penalty turned round",
        SEARCH,
        "((5 + length) / 6) ** alpha",
        "((5 + length) / 6) ** -alpha",
        (PENALTY, EXHAUSTIVE),
    ),
    Mutant(
        "eos is not counted in the length",
        SEARCH,
        "self._end(tokens, log_p, len(tokens) + 1)",
        "self._end(tokens, log_p, len(tokens))",
        (EXHAUSTIVE, PLAIN),
    ),
    Mutant(
        "early stopping looks one token ahead",
        SEARCH,
        "(len(tokens) + 1, self.limit)",
        "(len(tokens) + 1,)",
        (EARLY,),
    ),
    Mutant(
        "early stopping looks at the limit only",
        SEARCH,
        "(len(tokens) + 1, self.limit)",
        "(self.limit,)",
        (EARLY,),
    ),
    Mutant(
        "the search stops when n have ended",
        SEARCH,
        "return nth_best >= max(",
        "return nth_best <= 0 or max(",
        (EARLY,),
    ),
    Mutant(
        "early stopping asks for the best, not the n-th",
        SEARCH,
        "[self.config.n_best - 1]",
        "[0]",
        (EARLY,),
    ),
    Mutant(
        "ended hypotheses give up their place",
        SEARCH,
        "self.config.beam_size - len(self.ended)",
        "self.config.beam_size",
        (PLAIN,),
    ),
    Mutant("ended hypotheses are dropped", SEARCH, "self.ended.append(", "(", (EXHAUSTIVE, PLAIN)),
    Mutant(
        "unfinished hypotheses are lost at the limit",
        SEARCH,
        "self._end([*tokens, token], log_p, self.limit)",
        "pass",
        (EXHAUSTIVE, LIMITS),
    ),
    Mutant(
        "hypotheses are ranked by log P",
        SEARCH,
        "key=lambda h: -h.score",
        "key=lambda h: -h.log_p",
        (EXHAUSTIVE, PLAIN),
    ),
    Mutant(
        "the state does not follow the hypotheses",
        SEARCH,
        "state.reorder(parents_BW)",
        "pass",
        (PLAIN,),
    ),
    Mutant(
        "padding and eos count in the source's length",
        SEARCH,
        "(source != model.config.pad_id) & (source != model.config.eos_id)",
        "source >= 0",
        (LIMITS,),
    ),
    Mutant(
        "greedy search goes one token too far",
        SEARCH,
        "len(outputs[sentence]) < limits[sentence]",
        "len(outputs[sentence]) <= limits[sentence]",
        (LIMITS,),
    ),
    Mutant(
        "finished sentences stay in greedy search",
        SEARCH,
        "if len(going_on) < len(alive):",
        "if not going_on:",
        ("translation/test_search.py::test_a_finished_sentence_leaves_the_batch",),
    ),
    Mutant(
        "beam 1 takes any of the most probable tokens",
        SEARCH,
        "if beam_size == 1:",
        "if False:",
        ("translation/test_search.py::test_beam_1_is_greedy_search_where_logits_are_equal",),
    ),
    Mutant(
        "a batch's limit ignores its beam",
        "translation/translator.py",
        "max_tokens // config.beam_size",
        "max_tokens",
        ("translation/test_translator.py::test_max_tokens_bounds_a_batch_with_all_its_hypotheses",),
    ),
    Mutant(
        "at most source + 100", CONFIG, "max_extra: int = 50", "max_extra: int = 100", (DEFAULTS,)
    ),
    # Trees (6.3), and what waits for what (4)
    Mutant(
        "a closing bracket closes what is not open",
        PARSING,
        "while label in [opened for opened, _ in stack[1:]] and close() != label:",
        "while len(stack) > 1 and close() != label:",
        (REPAIR,),
    ),
    Mutant(
        "open brackets stay open",
        PARSING,
        "    while len(stack) > 1:\n        close()",
        "    close()",
        ("test_parsing.py::test_whatever_a_model_writes_becomes_a_tree_over_the_words",),
    ),
    Mutant(
        "words beyond the last tag are lost",
        PARSING,
        "[Tree(UNKNOWN_TAG, (word,)) for word in remaining]",
        "[]",
        ("test_parsing.py::test_whatever_a_model_writes_becomes_a_tree_over_the_words",),
    ),
    Mutant(
        "brackets without words stay",
        PARSING,
        "        if children:\n            stack[-1]",
        "        if True:\n            stack[-1]",
        (REPAIR,),
    ),
    Mutant(
        "punctuation counts",
        PARSING,
        'if tag in (*PUNCTUATION, "-NONE-") else set()',
        'if tag == "-NONE-" else set()',
        (SAME_BRACKETS,),
    ),
    Mutant(
        "functions of labels count",
        PARSING,
        're.split("[-=]", node[0])[0]',
        "node[0]",
        (SAME_BRACKETS,),
    ),
    Mutant(
        "PRT is not ADVP", PARSING, '"ADVP" if label == "PRT" else label', "label", (SAME_BRACKETS,)
    ),
    Mutant(
        "TOP counts",
        PARSING,
        'label not in (TOP, "ROOT", "S1") and start',
        "start",
        (SAME_BRACKETS,),
    ),
    Mutant(
        "a bracket that occurs twice counts once",
        PARSING,
        "(ours & theirs).total()",
        "len(ours & theirs)",
        ("test_parsing.py::test_a_bracket_that_occurs_twice_must_be_predicted_twice",),
    ),
    Mutant(
        "precision and recall change places",
        PARSING,
        "for n in (n_guessed, n_gold))",
        "for n in (n_gold, n_guessed))",
        ("test_parsing.py::test_f1_by_hand_on_one_attachment",),
    ),
    Mutant(
        "each tree's own tags are its punctuation",
        PARSING,
        "(brackets(tree, uncounted_words(right)) for tree in (right, guess))",
        "(brackets(tree) for tree in (right, guess))",
        ("test_parsing.py::test_a_wrong_tag_moves_no_bracket",),
    ),
    Mutant("a product with a bias waits for nothing", COST, '"Addmm", ', "", (CHAIN,)),
    Mutant(
        "a chain is the sum of its branches", COST, "product + max([", "product + sum([", (CHAIN,)
    ),
]


class Outcome(NamedTuple):
    """How a copy's tests went: pytest's exit status, tests that failed in their own code, the package's directory."""

    exit_status: int
    failed: list[str]
    package: str
    output: str


def copy_of_the_package(directory: Path) -> Path:
    """A fresh copy of the package that this process imported, in `directory`."""
    import annotated_transformer

    source, package = (
        Path(annotated_transformer.__file__).parent,
        directory / "annotated_transformer",
    )
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def _run_tests(directory: str, tests: list[str], output: str) -> Outcome:
    """In a forked child: pytest over `tests`, with the package of `directory`."""
    import pytest

    class Recorder:
        failed: list[str] = []

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(self, item: pytest.Item) -> None:
            if item.nodeid.partition("[")[0] in self.failed:
                pytest.skip("another case of it has failed, which is enough")

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and report.when == "call":
                self.failed.append(report.nodeid.partition("[")[0])

    assert "annotated_transformer" not in sys.modules
    sys.path.insert(0, directory)
    limit = max(60, 10 * len(tests))  # CPU seconds: a search that never ends is ended
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
        "1"  # these tests need no plugin, and to look for them takes time
    )
    with open(output, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "-c",
            os.devnull,
            "-o",
            f"pythonpath={Path(__file__).parent}",
            f"--rootdir={Path(__file__).parent}",  # what a failed test is called begins here
        ]
        status = pytest.main([*options, *tests], plugins=[Recorder()])
    package = str(Path(sys.modules["annotated_transformer"].__file__ or "").parent)
    return Outcome(int(status), sorted(set(Recorder.failed)), package, output)


def _load_what_tests_load() -> None:
    """Import the libraries once, and those that PyTorch imports at first use: 2 seconds for each fork otherwise."""
    import jaxtyping  # noqa: F401
    import pytest  # noqa: F401
    import sacrebleu  # noqa: F401
    import safetensors.torch  # noqa: F401
    import sentencepiece  # noqa: F401
    import torch

    weight = torch.ones(2, requires_grad=True)
    torch.testing.assert_close(weight, weight)  # imports distributed tensors and sympy
    weight.sum().backward()
    torch.optim.Adam([weight]).step()  # imports the compiler


def serve() -> None:
    """Answer each request on standard input (JSON: directory, tests, output) with a JSON Outcome."""
    _load_what_tests_load()
    for line in sys.stdin:
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reader)
            outcome = _run_tests(*json.loads(line))
            with os.fdopen(writer, "w") as pipe:
                json.dump(outcome, pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print(answer or json.dumps(Outcome(-1, [], "", json.loads(line)[2])), flush=True)


if __name__ == "__main__":
    serve()
