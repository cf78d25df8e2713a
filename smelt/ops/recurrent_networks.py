"""Recurrent networks, by layer or cell."""

from __future__ import annotations

from smelt.ops.recompute_rules import Class
from smelt.ops.registry import declare

declare("mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell _cudnn_rnn", recompute=Class.PRODUCT)
