//! TOML to [`Layer`]: every key known, every error with its line.

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::error::{PolicyError, suggestion};
use crate::layer::{DockerLayer, DockerMountEntry, Entry, Layer, Limit, NetworkMode, PathEntry, Place, RouteEntry};
use crate::names;
use crate::policy::{Access, Guarantee, HomeMode, McpTool, Pull};
use crate::route::{self, RouteRules, SecretRule};
use crate::selector;
use crate::values;

/// The only schema that there is.
const SCHEMA: u64 = 1;

/// Guarantees that no profile may merely prefer: without them there is no boundary. One run can still accept their loss
/// by name.
pub(crate) const ALWAYS_REQUIRED: [Guarantee; 8] = [
    Guarantee::FilesReadConfined,
    Guarantee::FilesWriteConfined,
    Guarantee::FilesHidden,
    Guarantee::NetworkMediated,
    Guarantee::UnixSocketsConfined,
    Guarantee::NoNewPrivileges,
    Guarantee::SyscallsFiltered,
    Guarantee::EnvironmentScrubbed,
];

/// A text and where its lines start.
pub(crate) struct Document<'a> {
    place: &'a Place,
    newlines: Vec<usize>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(place: &'a Place, text: &str) -> Self {
        Self { place, newlines: text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect() }
    }

    fn line(&self, offset: usize) -> u32 {
        u32::try_from(self.newlines.partition_point(|newline| *newline < offset) + 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn error(&self, line: u32, message: impl Into<String>) -> PolicyError {
        PolicyError::at(self.place.line(line), message)
    }
}

/// Parses `text` into its root table, which is handed to `read`.
pub(crate) fn document<T>(
    place: &Place,
    bytes: &[u8],
    read: impl FnOnce(&Document<'_>, Table<'_, '_>) -> Result<T, PolicyError>,
) -> Result<T, PolicyError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count();
        PolicyError::at(place.line(line as u32), "not UTF-8")
    })?;
    let document = Document::new(place, text);
    let root = DeTable::parse(text).map_err(|error| {
        let line = document.line(error.span().map_or(0, |span| span.start));
        document.error(line, format!("not TOML: {}", error.message().trim_end().replace('\n', ", ")))
    })?;
    read(&document, Table::new(&document, "", 1, root.get_ref()))
}

/// Parses a profile.
pub(crate) fn layer(place: &Place, bytes: &[u8]) -> Result<Layer, PolicyError> {
    document(place, bytes, |_, root| profile(root))
}

/// A value with its place.
#[derive(Clone, Copy)]
pub(crate) struct Value<'t, 'i> {
    document: &'t Document<'t>,
    key: &'t str,
    line: u32,
    value: &'t DeValue<'i>,
}

/// A table of which known keys are taken away one by one.
pub(crate) struct Table<'t, 'i> {
    document: &'t Document<'t>,
    name: &'t str,
    line: u32,
    known: Vec<&'static str>,
    entries: Vec<(&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>)>,
}

impl<'t, 'i> Table<'t, 'i> {
    fn new(document: &'t Document<'t>, name: &'t str, line: u32, table: &'t DeTable<'i>) -> Self {
        Self { document, name, line, known: Vec::new(), entries: table.iter().collect() }
    }

    pub(crate) fn take(&mut self, key: &'static str) -> Option<Value<'t, 'i>> {
        self.known.push(key);
        let index = self.entries.iter().position(|(name, _)| name.get_ref() == key)?;
        let (name, value) = self.entries.remove(index);
        let line = self.document.line(name.span().start);
        Some(Value { document: self.document, key: name.get_ref(), line, value: value.get_ref() })
    }

    pub(crate) fn table(&mut self, key: &'static str) -> Result<Option<Table<'t, 'i>>, PolicyError> {
        self.take(key).map(Value::table).transpose()
    }

    /// The value of a key that is not to be there, and so is no suggestion.
    fn forbidden(&self, key: &str) -> Option<Value<'t, 'i>> {
        let (name, value) = self.entries.iter().find(|(name, _)| name.get_ref() == key)?;
        let line = self.document.line(name.span().start);
        Some(Value { document: self.document, key: name.get_ref(), line, value: value.get_ref() })
    }

    /// All that is left, for tables whose keys are free text.
    pub(crate) fn rest(self) -> impl Iterator<Item = (&'t str, Value<'t, 'i>)> {
        let document = self.document;
        self.entries.into_iter().map(move |(name, value)| {
            let line = document.line(name.span().start);
            (name.get_ref().as_ref(), Value { document, key: name.get_ref(), line, value: value.get_ref() })
        })
    }

    /// Refuses what nobody took.
    pub(crate) fn finish(self) -> Result<(), PolicyError> {
        let first = self.entries.iter().min_by_key(|(name, _)| name.span().start);
        let Some((name, _)) = first else { return Ok(()) };
        let line = self.document.line(name.span().start);
        let name = name.get_ref().as_ref();
        let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
        let hint = suggestion(name, self.known.iter().copied());
        Err(self.document.error(line, format!("unknown key \"{name}\"{place}{hint}")))
    }
}

impl<'t, 'i> Value<'t, 'i> {
    fn error(&self, message: impl std::fmt::Display) -> PolicyError {
        self.document.error(self.line, format!("{}: {message}", self.key))
    }

    fn expected(&self, what: &str) -> PolicyError {
        self.error(format_args!("expected {what}, found {}", self.value.type_str()))
    }

    fn entry<T>(&self, value: T) -> Entry<T> {
        Entry { value, line: self.line }
    }

    fn table(self) -> Result<Table<'t, 'i>, PolicyError> {
        match self.value.as_table() {
            Some(table) => Ok(Table::new(self.document, self.key, self.line, table)),
            None => Err(self.expected("a table")),
        }
    }

    fn items(self) -> Result<impl Iterator<Item = Value<'t, 'i>>, PolicyError> {
        let Some(array) = self.value.as_array() else { return Err(self.expected("a list")) };
        let whole = self;
        Ok(array.iter().map(move |item| Value { line: whole.document.line(item.span().start), value: item.get_ref(), ..whole }))
    }

    /// Text without control characters.
    pub(crate) fn text(self) -> Result<&'t str, PolicyError> {
        let text = self.value.as_str().ok_or_else(|| self.expected("a string"))?;
        match text.chars().find(|c| c.is_control()) {
            Some(c) => Err(self.error(format_args!("the control character {} is not allowed here", c.escape_default()))),
            None => Ok(text),
        }
    }

    fn texts(self) -> Result<Vec<Entry<String>>, PolicyError> {
        self.items()?.map(|item| Ok(item.entry(item.text()?.to_owned()))).collect()
    }

    fn checked(self, check: impl Fn(&str) -> Result<(), String>) -> Result<Vec<Entry<String>>, PolicyError> {
        let entries = self.texts()?;
        for entry in &entries {
            let place = Value { line: entry.line, ..self };
            check(&entry.value).map_err(|why| place.error(format_args!("\"{}\": {why}", entry.value)))?;
        }
        Ok(entries)
    }

    fn boolean(self) -> Result<bool, PolicyError> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    fn whole(self) -> Option<u64> {
        let integer = self.value.as_integer()?;
        u64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// One of a few words.
    fn word<T>(self, known: &[&str], parse: impl Fn(&str) -> Option<T>) -> Result<Entry<T>, PolicyError> {
        let text = self.text()?;
        parse(text).map(|value| self.entry(value)).ok_or_else(|| {
            let hint = suggestion(text, known.iter().copied());
            let list = if known.len() < 6 { format!("; expected {}", known.join(", ")) } else { String::new() };
            self.error(format_args!("unknown value \"{text}\"{}", if hint.is_empty() { list } else { hint }))
        })
    }
}

fn profile(mut root: Table<'_, '_>) -> Result<Layer, PolicyError> {
    let mut layer = Layer::default();
    let (document, line) = (root.document, root.line);
    match root.take("schema") {
        None => return Err(document.error(line, format!("schema is missing; write \"schema = {SCHEMA}\" on the first line"))),
        Some(value) if value.whole() == Some(SCHEMA) => {}
        Some(value) => return Err(value.error(format_args!("this version reads schema {SCHEMA} only"))),
    }
    layer.description = root.take("description").map(|value| value.text().map(str::to_owned)).transpose()?;
    layer.includes = root.take("includes").map(Value::texts).transpose()?;
    if let Some(table) = root.table("filesystem")? {
        filesystem(&mut layer, table)?;
    }
    if let Some(mut table) = root.table("environment")? {
        layer.allow = table.take("allow").map(|v| v.checked(values::variable_pattern)).transpose()?.unwrap_or_default();
        layer.deny = table.take("deny").map(|v| v.checked(values::variable_pattern)).transpose()?.unwrap_or_default();
        if let Some(set) = table.table("set")? {
            layer.set = set.rest().map(variable).collect::<Result<_, _>>()?;
        }
        table.finish()?;
    }
    if let Some(table) = root.table("network")? {
        network(&mut layer, table)?;
    }
    if let Some(mut table) = root.table("unix")? {
        layer.connect = table.take("connect").map(Value::texts).transpose()?;
        table.finish()?;
    }
    if let Some(mut table) = root.table("mcp")? {
        layer.mcp_tools = table.take("tools").map(mcp_tools).transpose()?;
        table.finish()?;
    }
    if let Some(table) = root.table("docker")? {
        layer.docker = docker(table)?;
    }
    if let Some(mut table) = root.table("limits")? {
        for key in values::LIMITS {
            layer.limits.extend(table.take(key).map(|value| limit(key, value)).transpose()?);
        }
        table.finish()?;
    }
    if let Some(mut table) = root.table("kernel")? {
        for (key, which) in values::KERNEL {
            if let Some(value) = table.take(key) {
                layer.kernel.push(value.entry((which, value.boolean()?)));
            }
        }
        table.finish()?;
    }
    if let Some(table) = root.table("guarantees")? {
        guarantees(&mut layer, table)?;
    }
    root.finish()?;
    Ok(layer)
}

fn filesystem(layer: &mut Layer, mut table: Table<'_, '_>) -> Result<(), PolicyError> {
    let access = |text: &str| match text {
        "hidden" => Some(Access::Hidden),
        "read" => Some(Access::Read),
        "write" => Some(Access::Write),
        "overlay" => Some(Access::Overlay),
        _ => None,
    };
    let home = |text: &str| match text {
        "private" => Some(HomeMode::Private),
        "hidden" => Some(HomeMode::Hidden),
        "read" => Some(HomeMode::Read),
        _ => None,
    };
    let workspace = table.take("workspace");
    layer.workspace = workspace.map(|v| v.word(&["hidden", "read", "write", "overlay"], access)).transpose()?;
    layer.home = table.take("home").map(|v| v.word(&["private", "hidden", "read"], home)).transpose()?;
    let lists = [
        ("read", Access::Read),
        ("write", Access::Write),
        ("overlay", Access::Overlay),
        ("cache", Access::Overlay),
        ("hide", Access::Hidden),
    ];
    for (list, access) in lists {
        for entry in table.take(list).map(|v| v.checked(crate::paths::check)).transpose()?.into_iter().flatten() {
            let value = PathEntry { text: entry.value.into(), access, cache: list == "cache" };
            layer.paths.push(Entry { value, line: entry.line });
        }
    }
    let lists = [
        ("guard", &mut layer.guard),
        ("unguard", &mut layer.unguard),
        ("prevent", &mut layer.prevent),
        ("stage", &mut layer.stage),
    ];
    for (name, list) in lists {
        let check = |text: &str| selector::check(name, text, names::rules());
        *list = table.take(name).map(|v| v.checked(check)).transpose()?.unwrap_or_default();
    }
    table.finish()
}

fn variable((name, value): (&str, Value<'_, '_>)) -> Result<Entry<(String, String)>, PolicyError> {
    values::variable_name(name).map_err(|why| value.error(why))?;
    let Some(text) = value.value.as_str() else { return Err(value.expected("a string")) };
    if text.contains('\0') {
        return Err(value.error("a variable cannot hold NUL"));
    }
    Ok(value.entry((name.to_owned(), text.to_owned())))
}

fn network(layer: &mut Layer, mut table: Table<'_, '_>) -> Result<(), PolicyError> {
    layer.network = table.take("mode").map(|v| v.word(&values::NETWORK_MODES[..5], values::network_mode)).transpose()?;
    if let Some(routes) = table.take("route") {
        layer.routes = routes.items()?.map(|item| route(item)).collect::<Result<_, _>>()?;
        if let Some(mode @ Entry { value: NetworkMode::Off | NetworkMode::Host, .. }) = &layer.network
            && !layer.routes.is_empty()
        {
            return Err(table.document.error(mode.line, "mode: routes are named in this file, so the mode must be \"routes\""));
        }
    }
    layer.loopback_connect = table.take("connect").map(ports).transpose()?;
    layer.loopback_publish = table.take("publish").map(ports).transpose()?;
    table.finish()
}

fn port(item: Value<'_, '_>) -> Result<Entry<u16>, PolicyError> {
    let port = item.whole().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    port.map(|port| item.entry(port)).ok_or_else(|| item.error("expected a port from 1 to 65535"))
}

fn ports(list: Value<'_, '_>) -> Result<Vec<Entry<u16>>, PolicyError> {
    list.items()?.map(port).collect()
}

fn route(value: Value<'_, '_>) -> Result<Entry<RouteEntry>, PolicyError> {
    let mut table = value.table()?;
    let host = table.take("host").ok_or_else(|| value.error("host is missing"))?;
    let text = host.text()?;
    let canonical = values::host(text).map_err(|why| host.error(format_args!("\"{text}\": {why}")))?;
    let ports = match table.take("ports") {
        None => values::DEFAULT_PORTS.to_vec(),
        Some(list) => {
            let ports: Vec<u16> = ports(list)?.into_iter().map(|port| port.value).collect();
            if ports.is_empty() {
                return Err(list.error("a route without ports leads nowhere; leave the key out for the default"));
            }
            ports
        }
    };
    let rules = route_rules(&mut table)?;
    if rules.secret.is_some() && rules.paths.is_empty() {
        // Whoever can choose the path can often have the answer, or the whole request, sent somewhere else.
        return Err(value.error("a route with a secret needs paths"));
    }
    table.finish()?;
    Ok(Entry { value: RouteEntry { host: canonical, ports, rules }, line: host.line })
}

fn route_rules(table: &mut Table<'_, '_>) -> Result<RouteRules, PolicyError> {
    fn parsed<T>(value: Value<'_, '_>, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, PolicyError> {
        let text = value.text()?;
        parse(text).map_err(|why| value.error(format_args!("\"{text}\": {why}")))
    }
    /// Missing means any; an empty list would mean none, which no route is for.
    fn list<T>(value: Option<Value<'_, '_>>, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, PolicyError> {
        let Some(value) = value else { return Ok(Vec::new()) };
        let items = value.items()?.map(|item| parsed(item, &parse)).collect::<Result<Vec<_>, _>>()?;
        if items.is_empty() {
            return Err(value.error("an empty list would allow nothing; leave the key out for any"));
        }
        Ok(items)
    }
    let kept = |check: fn(&str) -> Result<(), String>| move |text: &str| check(text).map(|()| text.to_owned());
    Ok(RouteRules {
        methods: list(table.take("methods"), kept(route::method))?,
        paths: list(table.take("paths"), kept(route::path_glob))?,
        max_body: table.take("max-body").map(|value| parsed(value, values::size)).transpose()?,
        secret: table.table("secret")?.map(secret).transpose()?,
        upstream: table.take("upstream").map(|value| parsed(value, route::upstream)).transpose()?,
        addresses: list(table.take("addresses"), route::ip_network)?,
        rate: table.take("rate").map(|value| parsed(value, route::rate)).transpose()?,
    })
}

fn secret(mut table: Table<'_, '_>) -> Result<SecretRule, PolicyError> {
    let (document, line) = (table.document, table.line);
    let missing = |key: &str| document.error(line, format!("secret: {key} is missing"));
    let name = table.take("name").ok_or_else(|| missing("name"))?;
    let text = name.text()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if text.is_empty() || !text.bytes().all(plain) {
        return Err(name.error("expected a name of letters, digits, \"-\", \"_\" and \".\""));
    }
    let header = table.take("header").ok_or_else(|| missing("header"))?;
    let canonical = route::secret_header(header.text()?).map_err(|why| header.error(why))?;
    let format = match table.take("format") {
        None => "{}".to_owned(),
        Some(value) => {
            let text = value.text()?;
            route::secret_format(text).map_err(|why| value.error(why))?;
            text.to_owned()
        }
    };
    table.finish()?;
    Ok(SecretRule { name: text.to_owned(), header: canonical, format })
}

fn mcp_tools(value: Value<'_, '_>) -> Result<Entry<Vec<Entry<McpTool>>>, PolicyError> {
    let names = McpTool::ALL.map(McpTool::name);
    let tools = value.items()?.map(|item| item.word(&names, McpTool::from_name)).collect::<Result<_, _>>()?;
    Ok(value.entry(tools))
}

/// What people know from container engines and what would undo the container.
const UNDOES: [(&[&str], &str); 7] = [
    (&["privileged"], "a privileged container is no boundary"),
    (&["cap-add", "cap_add", "capabilities"], "the container has no capabilities, and gets none"),
    (
        &["network", "network-mode", "network_mode", "net", "ports", "publish"],
        "the container has no network; [network] says where jobs may connect to",
    ),
    (&["pid", "ipc", "uts", "userns", "userns-mode", "userns_mode", "cgroupns"], "the host's namespaces are not shared"),
    (&["devices", "device", "gpus"], "devices of the host are not shared"),
    (&["security-opt", "security_opt", "seccomp", "apparmor"], "the container's filters are not loosened"),
    (&["user", "entrypoint", "command"], "it is the caller who runs, by this program"),
];

fn docker(mut table: Table<'_, '_>) -> Result<DockerLayer, PolicyError> {
    for (keys, why) in UNDOES {
        if let Some(value) = keys.iter().find_map(|key| table.forbidden(key)) {
            return Err(value.error(format_args!("refused: {why}")));
        }
    }
    let image = |value: Value<'_, '_>| -> Result<String, PolicyError> {
        let text = value.text()?;
        values::image(text).map_err(|why| value.error(format_args!("\"{text}\": {why}")))?;
        Ok(text.to_owned())
    };
    let platform = |value: Value<'_, '_>| -> Result<String, PolicyError> {
        let text = value.text()?;
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        match text.split('/').count() {
            2..=3 if text.split('/').all(plain) => Ok(text.to_owned()),
            _ => Err(value.error("expected os/architecture, e.g. \"linux/amd64\"")),
        }
    };
    let pull = |text: &str| match text {
        "never" => Some(Pull::Never),
        "missing" => Some(Pull::Missing),
        _ => None,
    };
    let layer = DockerLayer {
        line: table.line.max(1),
        image: table.take("image").map(image).transpose()?,
        pull: table.take("pull").map(|value| value.word(&["never", "missing"], pull)).transpose()?.map(|entry| entry.value),
        platform: table.take("platform").map(platform).transpose()?,
        mounts: match table.take("mounts") {
            Some(list) => list.items()?.map(docker_mount).collect::<Result<_, _>>()?,
            None => Vec::new(),
        },
        env: match table.table("env")? {
            Some(env) => env.rest().map(variable).collect::<Result<_, _>>()?,
            None => Vec::new(),
        },
    };
    table.finish()?;
    Ok(layer)
}

fn docker_mount(item: Value<'_, '_>) -> Result<Entry<DockerMountEntry>, PolicyError> {
    let mut table = item.table()?;
    let source = table.take("source").ok_or_else(|| item.error("source is missing"))?;
    let text = source.text()?;
    crate::paths::check(text).map_err(|why| source.error(format_args!("\"{text}\": {why}")))?;
    let target = match table.take("target") {
        None => None,
        Some(value) if value.text()?.starts_with('/') => Some(value.text()?.to_owned()),
        Some(value) => return Err(value.error("expected an absolute path")),
    };
    let write = table.take("write").map(Value::boolean).transpose()?.unwrap_or(false);
    table.finish()?;
    Ok(item.entry(DockerMountEntry { source: text.to_owned(), target, write }))
}

fn limit(key: &'static str, value: Value<'_, '_>) -> Result<Entry<Limit>, PolicyError> {
    let text = match value.value {
        DeValue::Integer(_) => value.whole().map(|number| number.to_string()).ok_or_else(|| value.error("out of range"))?,
        DeValue::Float(number) => number.as_str().to_owned(),
        _ => value.text()?.to_owned(),
    };
    match values::limit(key, &text) {
        Some(Ok(limit)) => Ok(value.entry(limit)),
        Some(Err(why)) => Err(value.error(format_args!("\"{text}\": {why}"))),
        None => Err(value.error("unknown limit")),
    }
}

fn guarantees(layer: &mut Layer, mut table: Table<'_, '_>) -> Result<(), PolicyError> {
    let names: Vec<&str> = Guarantee::ALL.iter().map(|g| g.name()).collect();
    let list = |value: Value<'_, '_>| -> Result<Vec<Entry<Guarantee>>, PolicyError> {
        value.items()?.map(|item| item.word(&names, Guarantee::from_name)).collect()
    };
    let document = table.document;
    layer.prefer = table.take("prefer").map(list).transpose()?.unwrap_or_default();
    layer.require = table.take("require").map(list).transpose()?.unwrap_or_default();
    for Entry { value, line } in &layer.prefer {
        if ALWAYS_REQUIRED.contains(value) {
            let message =
                format!("prefer: \"{value}\" is always required; one run can accept its loss with --accept-loss {value}");
            return Err(document.error(*line, message));
        }
        if layer.require.iter().any(|required| required.value == *value) {
            return Err(document.error(*line, format!("\"{value}\" is both preferred and required")));
        }
    }
    table.finish()
}
