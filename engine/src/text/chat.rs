//! Chat templates: Jinja, in the dialect of Hugging Face's `apply_chat_template`.

use crate::{Error, Result};
use minijinja::{Environment, ErrorKind as Kind, UndefinedBehavior, Value, value::Kwargs};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
    /// Whatever else the template reads, such as `reasoning_content` or `tool_calls`.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl Message {
    /// A turn with nothing but text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }
}

/// What is rendered besides the messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Opens the assistant's turn at the end, for it to be continued.
    pub add_generation_prompt: bool,
    /// Whether the model should think first; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Tool descriptions, as the template expects them.
    pub tools: Vec<Json>,
    /// Further variables of the template.
    pub extra: Map<String, Json>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, enable_thinking: None, tools: Vec::new(), extra: Map::new() }
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
    /// `bos_token` and the like, which templates may print.
    tokens: Map<String, Json>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({})", self.path.display())
    }
}

impl ChatTemplate {
    /// The template of a checkpoint directory; an error if it has none.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        Self::find(dir)?.ok_or_else(|| Error::Template {
            path: dir.to_owned(),
            line: None,
            what: "there is none, neither chat_template.jinja nor in tokenizer_config.json".into(),
            remedy: "fetch chat_template.jinja of the same release, or send the prompt as plain text".into(),
        })
    }

    /// The template of a checkpoint directory, if it has one: `chat_template.jinja`, else the
    /// `chat_template` of `tokenizer_config.json`.
    pub fn find(dir: impl AsRef<Path>) -> Result<Option<Self>> {
        let dir = dir.as_ref();
        let config_path = dir.join("tokenizer_config.json");
        let config = match read(&config_path)? {
            None => Map::new(),
            Some(text) => serde_json::from_str(&text).map_err(|e| Error::Malformed {
                path: config_path.clone(),
                what: format!("is not a JSON object: {e}"),
                remedy: "fetch it again, or remove it if there is a chat_template.jinja".into(),
            })?,
        };
        let path = dir.join("chat_template.jinja");
        if let Some(source) = read(&path)? {
            return Self::compile(source, &path, &config).map(Some);
        }
        match named(&config) {
            Some(source) => Self::compile(source.to_owned(), &config_path, &config).map(Some),
            None => Ok(None),
        }
    }

    /// Compiles the text of a template; `path` is only named in errors.
    ///
    /// ```
    /// use engine::text::{ChatOptions, ChatTemplate, Message};
    /// let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    /// let template = ChatTemplate::parse(source, "chat_template.jinja".as_ref())?;
    /// let text = template.render(&[Message::new("user", "Hi")], &ChatOptions::default())?;
    /// assert_eq!(text, "user: Hi\n");
    /// # Ok::<(), engine::Error>(())
    /// ```
    pub fn parse(source: &str, path: &Path) -> Result<Self> {
        Self::compile(source.to_owned(), path, &Map::new())
    }

    fn compile(source: String, path: &Path, config: &Map<String, Json>) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned("chat", source)
            .map_err(|e| template_error(path, &e, "correct the template, or fetch it again"))?;
        let tokens = ["bos_token", "eos_token", "pad_token", "unk_token"]
            .into_iter()
            .filter_map(|name| {
                let token = config.get(name)?;
                // Older files wrap the text in an object with its stripping rules.
                let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
                Some((name.to_owned(), text.into()))
            })
            .collect();
        Ok(Self { environment, path: path.to_owned(), tokens })
    }

    /// The text of a conversation, ready to be encoded.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let refuse = |what: String, remedy: &str| Error::Template {
            path: self.path.clone(),
            line: None,
            what,
            remedy: remedy.into(),
        };
        if messages.is_empty() {
            return Err(refuse("there are no messages".into(), "give at least one"));
        }
        for (i, message) in messages.iter().enumerate() {
            if !ROLES.contains(&message.role.as_str()) {
                let what = format!("message {i} has the role `{}`", message.role);
                return Err(refuse(what, "roles are system, user, assistant and tool"));
            }
        }
        let mut context = self.tokens.clone();
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        if let Some(thinking) = options.enable_thinking {
            context.insert("enable_thinking".into(), thinking.into());
        }
        if !options.tools.is_empty() {
            context.insert("tools".into(), options.tools.clone().into());
        }
        context.extend(options.extra.clone());
        let messages = serde_json::to_value(messages)
            .map_err(|e| refuse(format!("the messages are not JSON: {e}"), "correct their extra fields"))?;
        context.insert("messages".into(), messages);
        self.environment
            .get_template("chat")
            .and_then(|template| template.render(Value::from_serialize(&context)))
            .map_err(|e| template_error(&self.path, &e, "change the messages, or the template"))
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => {
            Err(Error::Io { path: path.to_owned(), source, remedy: "make it readable UTF-8".into() })
        }
    }
}

/// `chat_template` is a string, or a list of named ones of which `default` is meant.
fn named(config: &Map<String, Json>) -> Option<&str> {
    match config.get("chat_template")? {
        Json::String(source) => Some(source),
        Json::Array(list) => list.iter().find(|t| t["name"] == "default")?["template"].as_str(),
        _ => None,
    }
}

fn template_error(path: &Path, error: &minijinja::Error, remedy: &str) -> Error {
    let what = match (error.kind(), error.detail()) {
        (Kind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    Error::Template { path: path.to_owned(), line: error.line(), what, remedy: remedy.into() }
}

/// How a template refuses a conversation.
fn raise_exception(message: String) -> Result<String, minijinja::Error> {
    Err(minijinja::Error::new(Kind::InvalidOperation, message))
}

/// Python's `json.dumps(value, ensure_ascii=False)`, which models were trained on: a space after `,` and
/// `:`, no escaping of HTML. Jinja's own filter does neither.
fn to_json(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accepted for templates that spell Python's default out.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let spaces = " ".repeat(indent.unwrap_or(0).min(16));
    let mut out = Vec::new();
    let written = match indent {
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PythonJson)),
        Some(_) => {
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, pretty))
        }
    };
    written
        .map_err(|e| e.to_string())
        .and_then(|()| String::from_utf8(out).map_err(|e| e.to_string()))
        .map_err(|e| minijinja::Error::new(Kind::BadSerialization, e))
}

struct PythonJson;

impl serde_json::ser::Formatter for PythonJson {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}
