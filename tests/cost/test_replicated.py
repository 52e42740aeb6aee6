from trimtab.cost.replicated import rank_memory, rank_traffic
from trimtab.plan.layout import ReplicatedLayout
from trimtab.plan.training import num_states
from trimtab.policy import assign_shares, own_blocks, shares_of
from trimtab.spec import AdamW, Optimizer, Sgd


def layout(**changes):
    values = {
        "devices": 4,
        "num_parts": 4,
        "has_fixed_order": True,
        "batch": 32,
        "microbatch": 8,
        "sequence": 128,
        "tensor_numels": (1008,),
    }
    return ReplicatedLayout(**(values | changes))


def memory(of, **changes):
    values = {"ranks": 4, "own_parts": 1, "own_blocks": 1, "all_blocks": 4, "states": 2, "is_saving": False}
    return rank_memory(of, **(values | changes))


def test_states_are_what_the_optimizer_keeps():
    """Two vectors for AdamW, one for momentum, none for plain SGD."""
    assert num_states(Optimizer(adamw=AdamW())) == 2
    assert num_states(Optimizer(sgd=Sgd(momentum=0.9))) == 1
    assert num_states(Optimizer(sgd=Sgd())) == 0


def test_memory_by_class_worked_by_hand():
    """1008 elements and a tail of 16 are 1024: four pieces of 256. A leaf has 1056, so that three ranks can cut it too."""
    found = memory(layout())
    assert found.parameters_bytes == 1008 * 4
    assert found.gradients_bytes == (1056 + 1008) * 4
    assert found.optimizer_bytes == 2 * 1008 * 4
    assert found.exchange_bytes == (4 * 256 + 4 * 256) * 4  # received subtrees, gathered sum
    assert found.staging_bytes == 0
    assert found.total_bytes == (1008 + 2064 + 2016 + 2048) * 4


def test_the_rank_that_saves_stages_the_whole_state():
    """Its memory is what a user must plan for."""
    assert memory(layout(), is_saving=True).staging_bytes == 3 * 1008 * 4


def test_each_share_of_a_survivor_costs_a_leaf():
    """After a loss a rank keeps more leaves: explain must show it before it happens."""
    one, three = memory(layout(), own_parts=1), memory(layout(), own_parts=3, own_blocks=2)
    assert three.gradients_bytes - one.gradients_bytes == 2 * 1056 * 4
    assert three.exchange_bytes > one.exchange_bytes


def test_traffic_worked_by_hand():
    """Each rank sends three pieces of 256 elements in each of the two phases."""
    sent = rank_traffic(layout(), ranks=4, own_blocks=1)
    assert sent.reduce_bytes == sent.gather_bytes == 3 * 256 * 4
    assert sent.total_bytes == 2 * 3 * 256 * 4


def test_a_lone_rank_sends_nothing():
    """One device needs no network, with shares or without."""
    assert rank_traffic(layout(), ranks=1, own_blocks=1).total_bytes == 0
    assert rank_traffic(layout(has_fixed_order=False), ranks=1, own_blocks=1).total_bytes == 0


def test_shares_off_sends_what_a_ring_sends():
    """2 (n - 1) / n of the vector, whatever the backend calls it."""
    sent = rank_traffic(layout(has_fixed_order=False), ranks=4, own_blocks=1)
    assert sent.total_bytes == 2 * 3 * 1024 * 4 // 4


def test_uneven_ownership_sends_more_where_subtrees_do_not_close():
    """Three ranks and eight shares: a rank with shares 0-2 owns two subtrees and sends twice."""
    owners = assign_shares(8, range(3))
    blocks = [len(own_blocks(shares_of(rank, owners), 8)) for rank in range(3)]
    sent = [rank_traffic(layout(num_parts=8, devices=3), ranks=3, own_blocks=b).reduce_bytes for b in blocks]
    assert blocks == [2, 2, 1]
    assert sent[0] == 2 * sent[2]
