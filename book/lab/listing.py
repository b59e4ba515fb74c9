"""The whole Transformer of the paper (section 3), by the boxes of chapter 0."""
import torch
from torch import nn

class MultiHeadAttention(nn.Module):  # boxes 4, 9 and 10
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)
        self.W_O = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, memory, mask):
        Q, K, V = self.W_Q(x), self.W_K(memory), self.W_V(memory)
        Q, K, V = (y.unflatten(-1, (self.h, -1)).transpose(1, 2)
                   for y in (Q, K, V))
        scores = Q @ K.transpose(-2, -1) / Q.size(-1) ** 0.5
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return self.W_O((weights @ V).transpose(1, 2).flatten(-2))

class FeedForward(nn.Module):  # box 6
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.W_1 = nn.Linear(d_model, d_ff)
        self.W_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.W_2(self.W_1(x).relu())

class AddNorm(nn.Module):  # box 5
    def __init__(self, d_model, p_drop):
        super().__init__()
        self.dropout = nn.Dropout(p_drop)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, answer):
        return self.norm(x + self.dropout(answer))

class EncoderLayer(nn.Module):  # box 7, left
    def __init__(self, d_model, d_ff, h, p_drop):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, h)
        self.add_norm_1 = AddNorm(d_model, p_drop)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.add_norm_2 = AddNorm(d_model, p_drop)

    def forward(self, x, mask):
        x = self.add_norm_1(x, self.self_attention(x, x, mask))
        return self.add_norm_2(x, self.feed_forward(x))

class DecoderLayer(nn.Module):  # box 7, right: one attention more
    def __init__(self, d_model, d_ff, h, p_drop):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, h)
        self.add_norm_1 = AddNorm(d_model, p_drop)
        self.cross_attention = MultiHeadAttention(d_model, h)
        self.add_norm_2 = AddNorm(d_model, p_drop)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.add_norm_3 = AddNorm(d_model, p_drop)

    def forward(self, x, memory, source_mask, target_mask):
        x = self.add_norm_1(x, self.self_attention(x, x, target_mask))
        x = self.add_norm_2(x, self.cross_attention(x, memory, source_mask))
        return self.add_norm_3(x, self.feed_forward(x))

class Transformer(nn.Module):
    def __init__(self, vocab_size, N=6, d_model=512, d_ff=2048, h=8, p_drop=.1):
        super().__init__()
        self.E = nn.Parameter(torch.randn(vocab_size, d_model) / d_model ** 0.5)
        self.dropout = nn.Dropout(p_drop)
        sizes = d_model, d_ff, h, p_drop
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(N))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(N))

    def embed(self, tokens):  # boxes 2 and 3
        n, d = tokens.size(1), self.E.size(1)
        angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        positions = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
        return self.dropout(self.E[tokens] * d ** 0.5 + positions.to(self.E))

    def forward(self, source, target, pad=0):
        source_mask = (source != pad)[:, None, None, :]  # true: may look
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        x = self.embed(target)
        target_mask = x.new_ones(x.size(1), x.size(1)).tril().bool()
        for layer in self.decoder:
            x = layer(x, memory, source_mask, target_mask)
        return x @ self.E.T  # box 11; its softmax is box 12
