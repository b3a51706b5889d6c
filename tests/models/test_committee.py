"""Committees: members are initialised and trained independently, and vote by their mean."""

from __future__ import annotations

import torch
from torch import Tensor

from heed.models import classifier, committee
from heed.models.classifier import Classifier, ClassifierSettings
from heed.models.committee import Committee

SIZES = {"symbols": 30, "labels": 3}


def settings(**more: object) -> ClassifierSettings:
    given = {"encoder": {"kind": "gru", "embedding": 7, "hidden": 10}, "members": 3}
    return ClassifierSettings.model_validate(given | more)


def texts() -> tuple[Tensor, Tensor]:
    return torch.randint(4, 30, (4, 9)), torch.tensor([9, 5, 1, 3])


def built(**more: object) -> Committee:
    torch.manual_seed(1)
    found = committee.build(settings(**more), **SIZES)
    assert isinstance(found, Committee)
    return found.eval()


def test_the_vote_is_the_mean_of_the_members_probabilities() -> None:
    model, given = built(), texts()
    said = model(*given)
    shares = [each(*given).logits.softmax(-1) for each in model.members]
    assert not torch.allclose(shares[0], shares[1])
    torch.testing.assert_close(said.logits.softmax(-1), torch.stack(shares).mean(0))
    torch.testing.assert_close(said.logits.exp().sum(-1), torch.ones(4))
    for one, share in zip(said.members, shares, strict=True):
        assert one.logits is not None
        torch.testing.assert_close(one.logits.softmax(-1), share)


def test_a_confident_member_does_not_outweigh_the_others() -> None:
    model = built()
    with torch.no_grad():
        for each, bias in zip(model.members, (200.0, -200.0, 0.0), strict=True):
            assert isinstance(each, Classifier)
            each.answer.weight.zero_()
            each.answer.bias.copy_(torch.tensor([bias, 0, 0]))
    shares = model(*texts()).logits.softmax(-1)
    # (1 + 0 + 1/3) / 3 and (0 + 1/2 + 1/3) / 3
    expected = torch.tensor([4 / 9, 5 / 18, 5 / 18]).expand(4, 3)
    torch.testing.assert_close(shares, expected)


def test_members_are_initialised_independently() -> None:
    one, other = built().members[:2]
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(x, y) for x, y in pairs)


def test_a_single_network_is_not_a_committee() -> None:
    torch.manual_seed(1)
    alone = committee.build(settings(members=1), **SIZES)
    torch.manual_seed(1)
    plain = classifier.build(settings(members=1), **SIZES)
    assert isinstance(alone, Classifier)
    assert alone.state_dict().keys() == plain.state_dict().keys()
    given = texts()
    said = alone.eval()(*given)
    torch.testing.assert_close(said.logits, plain.eval()(*given).logits, rtol=0, atol=0)
    assert said.members == [said]


def test_looks_are_concatenated() -> None:
    model, (symbols, lengths) = built(heads=2), texts()
    assert model(symbols, lengths).seen == {}  # not asked for
    said = model(symbols, lengths, need="weight")
    weight = said.seen["pool"].weight
    assert weight.shape == (4, 6, 1, 9)
    for k, each in enumerate(model.members):
        own = each(symbols, lengths, need="weight").seen["pool"].weight
        torch.testing.assert_close(weight[:, 2 * k : 2 * k + 2], own)


def test_each_member_is_perturbed_by_its_own_gradient() -> None:
    model, (symbols, lengths) = built(pool="mean"), texts()
    plain = model(symbols, lengths)
    nudge = torch.zeros(3, *plain.members[0].vectors.shape)
    nudge[1] = 0.5
    moved = model(symbols, lengths, nudge=nudge)
    pairs = zip(plain.members, moved.members, strict=True)
    assert [torch.equal(x.logits, y.logits) for x, y in pairs] == [True, False, True]
