"""Rendering: what is supervised is what the target would write, and nothing is repaired."""

import pytest

from dspark_hf.training.rendering import Renderer, RenderingError


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def renderer(make_tokenizer, kind="chat", end="<|im_end|>", **options):
    tokenizer = make_tokenizer(kind)
    return Renderer(tokenizer, end_ids=[tokenizer.convert_tokens_to_ids(end)], **options)


@pytest.mark.parametrize("kind", ["chat", "thinking"])
@pytest.mark.parametrize("thinking", [None, True, False])
def test_prompt_and_completion_are_together_the_rendered_conversation(make_tokenizer, kind, thinking):
    render = renderer(make_tokenizer, kind, thinking=thinking)
    prefix = "<think>\n\n</think>\n\n" if kind == "thinking" and thinking is False else ""
    history = [user("a"), assistant(f"{prefix}b"), user("c")]
    prompt, completion = render.ready_answer(history, assistant(f"{prefix}d"))
    text = render.tokenizer.decode(prompt + completion)
    assert text.endswith("<|im_start|>assistant\n" + prefix + "d<|im_end|>")
    assert render.tokenizer.decode(completion) == "d<|im_end|>"


def test_thinking_that_the_template_drops_from_the_history_is_not_in_a_later_prompt(make_tokenizer):
    render = renderer(make_tokenizer, "thinking")
    first = assistant("<think>\nhm\n</think>\n\none")
    prompt, completion = render.ready_answer([user("a")], first)
    assert "hm" in render.tokenizer.decode(completion)
    second, _ = render.ready_answer([user("a"), first, user("b")], assistant("<think>\nhm\n</think>\n\ntwo"))
    assert render.tokenizer.decode(second).count("hm") == 0


def test_a_rendering_that_is_not_a_prefix_is_refused(make_tokenizer):
    render = renderer(make_tokenizer, "thinking", thinking=False)
    with pytest.raises(RenderingError, match="not a token-exact prefix"):
        render.ready_answer([user("a")], assistant("no think block"))


def test_an_answer_with_only_the_closing_think_tag_is_refused(make_tokenizer):
    for kind in ("thinking", "opened"):
        with pytest.raises(RenderingError, match="unbalanced think block"):
            renderer(make_tokenizer, kind).ready_answer([user("q")], assistant("a</think>b"))


def test_a_generated_answer_whose_prompt_opened_the_think_block_comes_back_with_one_block(make_tokenizer):
    render = renderer(make_tokenizer, "opened")
    history = [user("q")]
    text = render.prompt_text(history)
    assert text.endswith("<think>\n")
    message = render.answer_message(text, "a</think>b")
    assert message["content"] == "<think>\na</think>b"
    rendered = render.prompt_text([*history, message, user("next")])
    assert rendered.count("<think>") - rendered.count("</think>") == 1
    render.prompt_ids([*history, message, user("next")])


def test_the_end_of_turn_is_supervised_even_when_it_is_not_eos(make_tokenizer):
    tokenizer = make_tokenizer("chat", eos="<eos>")
    render = Renderer(tokenizer, end_ids=[tokenizer.eos_token_id])
    history = [user("say x"), assistant("x"), user("say x")]
    prompt, completion = render.ready_answer(history, assistant("x"))
    assert tokenizer.decode(completion) == "x<|im_end|>"
    assert tokenizer.decode(prompt).count("<|im_end|>") == 3


def test_a_tokenizer_without_template_gives_plain_prompts_and_no_ready_answers(make_tokenizer):
    render = renderer(make_tokenizer, "none")
    assert render.tokenizer.decode(render.prompt_ids([user("abc")])) == "abc"
    assert render.template_hash == ""
    with pytest.raises(RenderingError, match="need a chat template"):
        render.ready_answer([user("a")], assistant("b"))


def test_a_template_that_raises_becomes_a_reason(make_tokenizer):
    render = renderer(make_tokenizer)
    render.tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(RenderingError, match="template refuses the conversation: no system role"):
        render.prompt_ids([user("a")])
