"""What holds where no statement says otherwise, written as a program with comments."""

DEFAULTS = """\
-- What holds where no statement says otherwise. This is a program, too: on one axis it changes nothing.

MESH dp *                           -- without MESH one axis, dp, holds all devices
SPLIT batch OVER dp                 -- without SPLIT batch: over every axis that no other SPLIT or PLACE uses
REDUCE grads OVER dp USING native   -- over every axis that splits batch or sequence: one sum over all tokens;
                                    --   the backend's route, the gradient's type, nothing compressed.
                                    --   A REDUCE that matches a row replaces this line for the row.
                                    --   With STORE grads it becomes a reduce-scatter.
KEEP params, grads, states IN fp32  -- master weights, what is added up, and the optimizer's states

-- Tensors that no SPLIT, PLACE or STORE names are replicated: every device holds all of them.
-- grads and states are laid out as their parameter; kv_heads are split with heads.
-- Layers compute in the type of train.compute; activations are kept for the backward pass.
-- Nothing waits outside its device, and nothing is sealed.
-- For one row and one property the last statement that matches decides.
"""
