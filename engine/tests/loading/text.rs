//! Tokenizer, streaming detokeniser, chat template.

use crate::support::{CHECKPOINTS, Copy, asset, message, says};
use engine::{
    config::Config,
    text::{ChatOptions, ChatTemplate, Message, Tokenizer},
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{fs, path::Path, sync::LazyLock};

static TINY: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open(asset("tiny-qwen35-mtp")).unwrap());
static FIXTURE: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::open(asset("fixtures/tiny-dense")).unwrap());

#[test]
fn golden_prompts_round_trip() {
    let golden = fs::read(asset("tiny-qwen35-mtp/golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 24);
    for case in cases {
        let prompt = case["prompt"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["prompt_ids"].clone()).unwrap();
        assert_eq!(TINY.encode(prompt).unwrap(), ids, "{prompt}");
        assert_eq!(TINY.decode(&ids, true), prompt);
    }
}

#[test]
fn every_tokenizer_fits_its_model() {
    for name in CHECKPOINTS {
        let (tokenizer, config) = (Tokenizer::open(asset(name)).unwrap(), Config::load(asset(name)).unwrap());
        tokenizer.check(&config).unwrap();
        for eos in config.eos {
            assert!(tokenizer.is_special(eos), "{name}: {eos}");
        }
    }
    // Rows 509..512 of the fixture's embedding are padding.
    assert_eq!(FIXTURE.valid_vocab(), 509);
    assert_eq!(FIXTURE.decode(&[509, 511, 512, u32::MAX], false), "");
    let mut small = Config::load(asset("fixtures/tiny-dense")).unwrap();
    small.vocab = 508;
    says(&message(FIXTURE.check(&small)), &["tokenizer.json", "508", "one release"]);
}

#[test]
fn special_tokens_are_recognised_and_can_be_skipped() {
    let ids = FIXTURE.encode("<|im_start|>user\nhi<|im_end|>").unwrap();
    assert_eq!((ids[0], ids.last().copied()), (501, Some(502)));
    assert_eq!(FIXTURE.id("<|im_end|>"), Some(502));
    assert_eq!(FIXTURE.decode(&ids, false), "<|im_start|>user\nhi<|im_end|>");
    assert_eq!(FIXTURE.decode(&ids, true), "user\nhi");
    // Added, but part of the text.
    assert!(!FIXTURE.is_special(507));
    assert_eq!(FIXTURE.decode(&[507, 508], true), "<think></think>");
}

#[test]
fn streams_hold_back_half_characters() {
    let text = "naïve 日本語 🦀 👩‍🚀 e\u{301}";
    let ids = TINY.encode(text).unwrap();
    assert!(ids.len() > text.chars().count(), "the test wants characters that span tokens");
    let mut stream = TINY.detokenizer(true);
    let parts: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    assert!(parts.iter().any(String::is_empty));
    assert!(parts.iter().all(|part| !part.contains('\u{fffd}')), "{parts:?}");
    assert_eq!(stream.flush(), "");
    // NFC, as the tokenizer asks for.
    assert_eq!(parts.concat(), "naïve 日本語 🦀 👩‍🚀 é");
    // What can no longer become a character is not held back.
    let byte = |b: u8| (0..256).find(|&id| TINY.bytes(id) == [b]).unwrap();
    let mut stream = TINY.detokenizer(true);
    assert_eq!((stream.push(byte(0xff)), stream.push(byte(b'a'))), ("\u{fffd}".into(), "a".into()));
    assert_eq!((stream.push(byte(0xe6)), stream.push(byte(b'a'))), (String::new(), "\u{fffd}a".into()));
    // A stream that ends inside a character says so once.
    let crab = TINY.encode("🦀").unwrap();
    let mut stream = TINY.detokenizer(true);
    for &id in &crab[..crab.len() - 1] {
        assert_eq!(stream.push(id), "");
    }
    assert_eq!((stream.flush(), stream.flush()), ("\u{fffd}".into(), String::new()));
}

fn oracle() -> &'static tokenizers::Tokenizer {
    static ORACLE: LazyLock<tokenizers::Tokenizer> =
        LazyLock::new(|| tokenizers::Tokenizer::from_file(asset("tiny-qwen35-mtp/tokenizer.json")).unwrap());
    &ORACLE
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn streamed_and_whole_decodes_agree(
        // The first 256 ids are single bytes: most sequences of them are not UTF-8.
        ids in prop::collection::vec(prop_oneof![3 => 0u32..256, 2 => 0u32..4100], 0..60),
        skip in any::<bool>(),
    ) {
        let whole = oracle().decode(&ids, skip).unwrap();
        prop_assert_eq!(&TINY.decode(&ids, skip), &whole);
        let mut stream = TINY.detokenizer(skip);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text += &stream.flush();
        prop_assert_eq!(text, whole);
    }

    #[test]
    fn any_text_round_trips_but_for_composition(text in "\\PC{0,40}|[ \\n\\t]{0,9}") {
        let ids = TINY.encode(&text).unwrap();
        let whole = oracle().encode(text.as_str(), true).unwrap();
        prop_assert_eq!(&ids, whole.get_ids());
        let back = TINY.decode(&ids, false);
        prop_assert_eq!(TINY.encode(&back).unwrap(), ids);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_tokenizers_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = fs::read(asset("fixtures/tiny-dense/tokenizer.json")).unwrap();
        for (at, byte) in edits {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        if let Ok(tokenizer) = Tokenizer::parse(&file, Path::new("x")) {
            let ids = tokenizer.encode("A line, and <think>\nanother 12.").unwrap_or_default();
            tokenizer.decode(&ids, false);
        }
    }
}

#[test]
fn broken_tokenizers_are_refused() {
    let copy = Copy::dense();
    let refused = |bytes: &[u8], words: &[&str]| {
        fs::write(copy.file("tokenizer.json"), bytes).unwrap();
        says(&message(Tokenizer::open(copy.path())), &[&["tokenizer.json"], words].concat());
    };
    refused(b"", &["not valid JSON", "again"]);
    refused(b"{}", &["ByteLevel"]);
    refused(b"[]", &["ByteLevel"]);
    refused(b"{\"decoder\": {\"type\": \"ByteLevel\"}}", &["model of type null", "BPE"]);
    refused(
        b"{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}",
        &["ByteLevel"],
    );
    let whole = fs::read(asset("fixtures/tiny-dense/tokenizer.json")).unwrap();
    refused(&whole[..whole.len() / 2], &["not valid JSON", "line 1"]);
    let mut json: Value = serde_json::from_slice(&whole).unwrap();
    json["model"]["vocab"]["far"] = json!(u32::MAX);
    refused(json.to_string().as_bytes(), &["token ids"]);
    json["model"] = json!({ "type": "BPE", "vocab": 7 });
    refused(json.to_string().as_bytes(), &["not a tokenizer"]);
    fs::remove_file(copy.file("tokenizer.json")).unwrap();
    says(&message(Tokenizer::open(copy.path())), &["tokenizer.json", "cannot be read", "fetch"]);
}

/// Parts on which the tokenizer library panics, when the file is read or when text is encoded.
#[test]
fn parts_of_other_tokenizers_are_refused_by_name() {
    let file = fs::read(asset("fixtures/tiny-dense/tokenizer.json")).unwrap();
    let with = |at: &str, part: Value| {
        let mut json: Value = serde_json::from_slice(&file).unwrap();
        *json.pointer_mut(at).unwrap() = part;
        Tokenizer::parse(json.to_string().as_bytes(), Path::new("tokenizer.json"))
    };
    let refused = |at: &str, part: Value, words: &[&str]| says(&message(with(at, part)), words);
    let table = json!({ "type": "Precompiled", "precompiled_charsmap": "BAAAAP////94eA==" });
    let empty = json!({ "type": "Replace", "pattern": { "String": "" }, "content": "x" });
    refused("/normalizer", table.clone(), &["tokenizer.json", "normalizer of type \"Precompiled\"", "NFC"]);
    refused("/normalizer", empty, &["\"Replace\""]);
    let nested = json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" }, table] });
    refused("/normalizer", nested, &["\"Precompiled\""]);
    refused("/normalizer", json!({ "type": "Sequence" }), &["list `normalizers`"]);
    let zero = json!({ "type": "FixedLength", "length": 0 });
    refused("/pre_tokenizer", zero, &["pre_tokenizer of type \"FixedLength\"", "Split or ByteLevel"]);
    refused("/decoder", json!({ "type": "WordPiece" }), &["decoder of type \"WordPiece\"", "ByteLevel"]);
    let mut model: Value = serde_json::from_slice::<Value>(&file).unwrap()["model"].take();
    model["continuing_subword_prefix"] = json!("a long prefix");
    refused("/model", model, &["continuing_subword_prefix \"a long prefix\""]);
    // What could only add tokens is not needed, and what would make encoding random is not wanted.
    let template = json!({
        "type": "TemplateProcessing", "special_tokens": {}, "pair": [],
        "single": [{ "Sequence": { "id": "B", "type_id": 9 } }],
    });
    let text = "A line, and\nanother.";
    assert_eq!(
        with("/post_processor", template).unwrap().encode(text).unwrap(),
        FIXTURE.encode(text).unwrap()
    );
    let random = with("/model/dropout", json!(0.9)).unwrap();
    for _ in 0..20 {
        assert_eq!(random.encode(text).unwrap(), FIXTURE.encode(text).unwrap());
    }
}

#[test]
fn the_fixture_template_renders() {
    let template = ChatTemplate::open(asset("fixtures/tiny-dense")).unwrap();
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Hi")];
    let turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n";
    let render = |options: ChatOptions| template.render(&messages, &options).unwrap();
    let thinking = |enable_thinking| ChatOptions { enable_thinking, ..ChatOptions::default() };
    let open = format!("{turns}<|im_start|>assistant\n<think>\n");
    assert_eq!(render(ChatOptions::default()), open);
    assert_eq!(render(thinking(Some(true))), open);
    let closed = format!("{turns}<|im_start|>assistant\n<think>\n\n</think>\n\n");
    assert_eq!(render(thinking(Some(false))), closed);
    assert_eq!(render(ChatOptions { add_generation_prompt: false, ..ChatOptions::default() }), turns);
}

/// A template with every construct that published Qwen templates use.
const DIALECT: &str = r#"
{%- macro text(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- else %}
        {{- raise_exception('Unexpected content type.') }}
    {%- endif %}
{%- endmacro %}
{%- if tools and tools is iterable and tools is not mapping %}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(last=-1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.seen and message.role == "user" and not (message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.seen = true %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {% if message.role == "assistant" %}
        {%- set content = text(message.content)|trim %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- loop.index0 ~ '>' ~ content }}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if call.arguments is defined %}
                    {%- for name, value in call.arguments|items %}
                        {{- ' ' + name + '=' + (value if value is string else value | tojson) }}
                    {%- endfor %}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
    {%- elif message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- else %}
        {{- message['role'].upper() + text(message.content).rstrip('\n') + ('!' if loop.index0 == ns.last else '') }}
    {%- endif %}
    {%- if loop.previtem and loop.previtem.role == message.role %}{{- '+' }}{%- endif %}
    {{- eos_token }}
{% endfor %}
"#;

#[test]
fn the_dialect_of_published_templates_is_understood() {
    let copy = Copy::dense();
    fs::write(copy.file("chat_template.jinja"), DIALECT).unwrap();
    let template = ChatTemplate::open(copy.path()).unwrap();
    let mut call = Message::new("assistant", "<think>\nhm\n</think>\n\nyes");
    call.extra.insert("tool_calls".into(), json!([{ "arguments": { "z": "1", "a": [1, { "b": "<é>" }] } }]));
    let messages = [Message::new("user", "one\n\n"), call, Message::new("user", "<r>x</r>")];
    let options = ChatOptions { tools: vec![json!({ "name": "f", "a": 1.5 })], ..ChatOptions::default() };
    let text = template.render(&messages, &options).unwrap();
    let wanted = "\n{\"name\": \"f\", \"a\": 1.5}USERone!<|im_end|>\n1>yes z=1 a=[1, {\"b\": \"<é>\"}]<|im_end|>\n\
                  USER<r>x</r><|im_end|>\n";
    assert_eq!(text, wanted);
    let late = [Message::new("user", "a"), Message::new("system", "b")];
    let error = message(template.render(&late, &ChatOptions::default()));
    let line = DIALECT.lines().position(|line| line.contains("must be at the beginning")).unwrap() + 1;
    says(
        &error,
        &["chat_template.jinja", &format!("line {line}:"), "System message must be at the beginning."],
    );
}

#[test]
fn templates_come_from_either_file() {
    let copy = Copy::dense();
    fs::remove_file(copy.file("chat_template.jinja")).unwrap();
    assert!(ChatTemplate::find(copy.path()).unwrap().is_none());
    says(&message(ChatTemplate::open(copy.path())), &["chat_template.jinja", "plain text"]);
    let list =
        json!([{ "name": "rag", "template": "no" }, { "name": "default", "template": "{{ eos_token }}" }]);
    for source in [json!("{{ eos_token }}"), list] {
        copy.json("tokenizer_config.json", |config| config["chat_template"] = source);
        let template = ChatTemplate::open(copy.path()).unwrap();
        assert_eq!(
            template.render(&[Message::new("user", "")], &ChatOptions::default()).unwrap(),
            "<|im_end|>"
        );
    }
    fs::write(copy.file("tokenizer_config.json"), "[").unwrap();
    says(&message(ChatTemplate::find(copy.path())), &["tokenizer_config.json", "JSON"]);
}

#[test]
fn templates_and_messages_that_fail_say_where() {
    let parse = |source: &str| ChatTemplate::parse(source, Path::new("chat_template.jinja"));
    says(&message(parse("a\n{% if %}")), &["chat_template.jinja", "line 2"]);
    says(&message(parse("{% endfor %}")), &["line 1"]);
    let template = parse("\n{{ strftime_now('%Y') }}").unwrap();
    let user = [Message::new("user", "")];
    says(&message(template.render(&user, &ChatOptions::default())), &["line 2", "strftime_now"]);
    says(&message(template.render(&[], &ChatOptions::default())), &["no messages"]);
    let role = [Message::new("narrator", "")];
    says(
        &message(template.render(&role, &ChatOptions::default())),
        &["`narrator`", "system, user, assistant"],
    );
    // Recursion without end is an error, not a stack overflow.
    let endless = parse("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").unwrap();
    says(&message(endless.render(&user, &ChatOptions::default())), &["recursion"]);
}
