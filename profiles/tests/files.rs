//! Policy files: includes, merging, paths, errors.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use hermes_profiles::guard::Selector;
use hermes_profiles::{Access, Guarantee, GuardRules, HomeMode, Network, Request, profile, resolve};
use support::*;

fn refused(text: &str) -> String {
    let message = message(written(text));
    message.strip_prefix("/home/user/.config/hermes-sandbox/profiles/mine.toml:").unwrap_or(&message).to_owned()
}

#[test]
fn everything_a_profile_can_say() {
    let text = r#"
schema = 1
description = "All"
includes = ["agent", "./other.toml"]

[filesystem]
workspace = "overlay"
home = "hidden"
read = ["?~/.gitconfig", "data", "${DATA:-/srv/data}"]
write = ["~/notes"]
overlay = ["/srv/overlay"]
cache = ["~/.tool"]
hide = ["~/notes/private"]
guard = ["**/.special"]

[environment]
allow = ["EDITOR", "MY_*"]
deny = ["MY_PRIVATE*"]
set = { CI = "1", "dotted.name" = "x y" }

[network]
mode = "routes"
[[network.route]]
host = "API.example.test."
ports = [443, 8443]
[[network.route]]
host = "*.cdn.example.test"

[unix]
connect = ["/run/service.sock", "?$SERVICE_SOCKET"]

[limits]
memory = "8GiB"
processes = 2048
cpu = 1.5
timeout = "none"

[kernel]
nested-sandbox = true

[guarantees]
prefer = ["signals-confined"]
require = ["tree-killed"]
"#;
    let other = "schema = 1\nincludes = []\n[limits]\ntimeout = 5\n";
    let files = Memory::default().profile("mine", text).profile("other", other);
    let policy = policy(&request("mine"), &files);
    assert_eq!((policy.workspace_access, policy.home.mode), (Access::Overlay, HomeMode::Hidden));
    assert_eq!(access(&policy, "/home/user/.config/hermes-sandbox/profiles/data"), Some(Access::Hidden), "settings are hidden");
    assert_eq!(access(&policy, "/srv/data/x"), Some(Access::Read));
    assert_eq!(access(&policy, "/home/user/notes"), Some(Access::Write));
    assert_eq!(access(&policy, "/home/user/notes/private/x"), Some(Access::Hidden));
    let optional = |path: &str| policy.rule_for(Path::new(path)).unwrap().optional;
    assert!(optional("/home/user/.tool") && optional("/home/user/.gitconfig") && !optional("/srv/overlay"));
    assert_eq!(policy.guard.add, [Selector::Anywhere("**/.special".into())]);
    assert_eq!(policy.environment.allow, ["EDITOR", "MY_*"]);
    assert_eq!(policy.environment.deny, ["MY_PRIVATE*"]);
    assert_eq!(policy.environment.set["dotted.name"], "x y");
    let Network::Routes(routes) = &policy.network else { panic!() };
    assert_eq!(routes[0].host, "*.cdn.example.test");
    assert_eq!((routes[1].host.as_str(), &routes[1].ports[..]), ("api.example.test", &[443, 8443][..]));
    assert!(routes[1].origin.to_string().ends_with("profiles/mine.toml:24"), "{}", routes[1].origin);
    assert_eq!(policy.unix.connect, [Path::new("/run/service.sock")]);
    assert_eq!((policy.limits.memory, policy.limits.memory_percent), (Some(8 << 30), None));
    assert_eq!((policy.limits.cpu_percent, policy.limits.timeout), (Some(150), None));
    assert!(policy.kernel.nested_sandbox);
    assert!(!policy.requires(Guarantee::SignalsConfined) && policy.requires(Guarantee::TreeKilled));
}

#[test]
fn missing_is_the_default_and_empty_is_nothing() {
    let policy = written("schema = 1\n").unwrap().policy;
    assert_eq!(access(&policy, "/usr/bin"), Some(Access::Read));
    assert_eq!(policy.workspace_access, Access::Read);
    assert_eq!(policy.guard, GuardRules::default());
    let policy = written("schema = 1\nincludes = []\n[filesystem]\nguard = []\n").unwrap().policy;
    assert_eq!(access(&policy, "/usr/bin"), None);
    assert_eq!((policy.limits.grace, policy.limits.processes), (2000, None));
    assert!(policy.guard == GuardRules::default() && policy.preferred.is_empty());
}

#[test]
fn errors_name_the_line_and_a_remedy() {
    for (text, wanted) in [
        ("", "1: schema is missing; write \"schema = 1\" on the first line"),
        ("schema = 2\n", "1: schema: this version reads schema 1 only"),
        ("schema = 1\nincldues = []\n", "2: unknown key \"incldues\"; did you mean \"includes\"?"),
        ("schema = 1\n[filesystem]\nraed = []\n", "3: unknown key \"raed\" in [filesystem]; did you mean \"read\"?"),
        ("schema = 1\n[limits]\nopen_files = 3\n", "3: unknown key \"open_files\" in [limits]; did you mean \"open-files\"?"),
        ("schema = 1\n[filesystem]\nworkspace = \"wirte\"\n", "3: workspace: unknown value \"wirte\"; did you mean \"write\"?"),
        ("schema = 1\n[filesystem]\nhome = \"yes\"\n", "3: home: unknown value \"yes\"; expected private, hidden, read"),
        ("schema = 1\n[filesystem]\nread = \"/x\"\n", "3: read: expected a list, found string"),
        ("schema = 1\n[filesystem]\nread = [\n  \"/x\",\n  7,\n]\n", "5: read: expected a string, found integer"),
        ("schema = 1\n[filesystem]\nread = [\"/a\\u0000b\"]\n", "3: read: the control character \\u{0} is not allowed here"),
        ("schema = 1\n[filesystem]\nread = [\"/a\\nb\"]\n", "3: read: the control character \\n is not allowed here"),
        ("schema = 1\n[filesystem]\nread = [\"\"]\n", "3: read: \"\": an empty path"),
        ("schema = 1\n[filesystem]\nread = [\"~other/x\"]\n", "\"~name\" is not supported"),
        ("schema = 1\n[filesystem]\nread = [\"${A\"]\n", "\"${\" without \"}\""),
        ("schema = 1\n[filesystem]\nread = [\"/a/$/b\"]\n", "a dollar sign is written \"$$\""),
        (
            "schema = 1\n[filesystem]\nread = [\"$NOT_SET/x\"]\n",
            "the variable NOT_SET is not set; a ? in front makes the rule optional",
        ),
        ("schema = 1\n[filesystem]\nread = [\"/x\"]\nwrite = [\"/y/../x\"]\n", "4: /x cannot be both read-only ("),
        ("schema = 1\n[filesystem]\nguard = [\"a[\"]\n", "3: guard: \"a[\": not a glob"),
        ("schema = 1\nschema = 1\n", "2: not TOML: duplicate key"),
        ("schema = 1\n[environment]\nallow = [\"*\"]\n", "3: allow: \"*\": \"*\" would allow every variable"),
        ("schema = 1\n[environment]\nallow = [\"A*B*\"]\n", "3: allow: \"A*B*\": expected the name of a variable"),
        ("schema = 1\n[environment]\nset = { \"A=B\" = \"\" }\n", "3: A=B: expected the name of a variable"),
        ("schema = 1\n[network]\nmode = \"proxy\"\n", ""),
        ("schema = 1\n[network]\nmode = \"of\"\n", "3: mode: unknown value \"of\"; did you mean \"off\"?"),
        (
            "schema = 1\n[network]\nmode = \"off\"\n[[network.route]]\nhost = \"example.test\"\n",
            "3: mode: routes are named in this file",
        ),
        ("schema = 1\n[[network.route]]\nports = [1]\n", "host is missing"),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\nports = [70000]\n",
            "4: ports: expected a port from 1 to 65535",
        ),
        ("schema = 1\n[[network.route]]\nhost = \"example.test\"\nports = []\n", "4: ports: a route without ports leads nowhere"),
        ("schema = 1\n[[network.route]]\nhost = \"example.test\"\nsecret = { name = \"x\" }\n", "4: secret: header is missing"),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\nsecret = { name = \"x\", header = \"Host\" }\n",
            "4: header: expected the name of a header",
        ),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\nsecret = { name = \"x\", header = \"X-Key\" }\n",
            "a route with a secret needs paths",
        ),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\nmethods = [\"get\"]\n",
            "4: methods: \"get\": expected a method",
        ),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\nmethods = []\n",
            "4: methods: an empty list would allow nothing",
        ),
        ("schema = 1\n[[network.route]]\nhost = \"example.test\"\npaths = [\"v1\"]\n", "4: paths: \"v1\": a path starts with"),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\npaths = [\n\"/a\",\n\"/a/../b\"]\n",
            "6: paths: \"/a/../b\": a path is matched after",
        ),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\nupstream = \"ftp://x.test\"\n",
            "4: upstream: \"ftp://x.test\": expected",
        ),
        (
            "schema = 1\n[[network.route]]\nhost = \"example.test\"\naddresses = [\"10.0.0.0/40\"]\n",
            "4: addresses: \"10.0.0.0/40\": expected an address",
        ),
        ("schema = 1\n[[network.route]]\nhost = \"example.test\"\nrate = \"0/s\"\n", "4: rate: \"0/s\": expected a rate"),
        ("schema = 1\n[[network.route]]\nhost = \"example.test\"\nmethod = [\"GET\"]\n", "did you mean \"methods\"?"),
        ("schema = 1\n[[network.route]]\nhost = \"*\"\n", "a wildcard needs a domain"),
        ("schema = 1\n[[network.route]]\nhost = \"127.1\"\n", "expected an address in its usual spelling"),
        ("schema = 1\n[limits]\nmemory = \"8 gigs\"\n", "3: memory: \"8 gigs\": expected a size such as"),
        ("schema = 1\n[limits]\nmemory = -1\n", "3: memory: out of range"),
        ("schema = 1\n[limits]\nmemory = \"101%\"\n", "3: memory: \"101%\": expected a share from 1% to 100%"),
        ("schema = 1\n[limits]\nprocesses = 0\n", "expected a whole number above 0"),
        ("schema = 1\n[kernel]\nstrict = 1\n", "3: strict: expected true or false, found integer"),
        (
            "schema = 1\n[guarantees]\nprefer = [\"memory-limit\"]\n",
            "3: prefer: unknown value \"memory-limit\"; did you mean \"memory-limited\"?",
        ),
        (
            "schema = 1\n[guarantees]\nprefer = [\"files-hidden\"]\n",
            "3: prefer: \"files-hidden\" is always required; one run can accept its loss with --accept-loss files-hidden",
        ),
        ("schema = 1\n[guarantees]\nprefer = [\"tree-killed\"]\nrequire = [\"tree-killed\"]\n", "both preferred and required"),
        (
            "schema = 1\nincludes = [\"agnet\"]\n",
            "2: includes: no profile \"agnet\" (no /home/user/.config/hermes-sandbox/profiles/agnet.toml); did you mean \"agent\"?",
        ),
        (
            "schema = 1\nincludes = [\"./gone.toml\"]\n",
            "2: includes: no profile \"./gone.toml\" (no /home/user/.config/hermes-sandbox/profiles/gone.toml); see",
        ),
    ] {
        if wanted.is_empty() {
            written(text).unwrap();
            continue;
        }
        let message = refused(text);
        assert!(message.contains(wanted), "{message}\nwanted: {wanted}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line() {
    let error = profile::check(Path::new("/x/p.toml"), b"schema = 1\n# \xff\n").unwrap_err();
    assert_eq!(error.to_string(), "/x/p.toml:2: not UTF-8");
    let error = profile::check(Path::new("/x/p.toml"), &vec![b'#'; 1 << 21]).unwrap_err();
    assert!(error.to_string().contains("larger than 1048576 bytes"), "{error}");
    for deep in ["[".repeat(100_000), format!("schema = 1\na = {}", "[".repeat(100_000)), format!("a = {}", "{a=".repeat(50_000))]
    {
        profile::check(Path::new("/x/p.toml"), deep.as_bytes()).unwrap_err();
    }
    let nested = format!("schema = 1\n[filesystem]\nread = [\"{}\"]\n", "${A:-".repeat(10_000));
    profile::check(Path::new("/x/p.toml"), nested.as_bytes()).unwrap_err();
}

#[test]
fn messages_show_no_escape_sequences() {
    let text = error(&request("\u{1b}[31m/x.toml"), &Memory::default());
    assert!(!text.contains('\u{1b}') && text.contains("\\x1b"), "{text}");
}

#[test]
fn cycles_are_named() {
    let files = Memory::default()
        .profile("a", "schema = 1\nincludes = [\"b\"]\n")
        .profile("b", "schema = 1\nincludes = [\"agent\", \"c\"]\n")
        .profile("c", "schema = 1\nincludes = [\"b\"]\n");
    let dir = "/home/user/.config/hermes-sandbox/profiles";
    let text = error(&request("a"), &files);
    assert!(text.contains(&format!("includes form a cycle: {dir}/b.toml -> {dir}/c.toml -> {dir}/b.toml")), "{text}");
    assert!(text.starts_with(&format!("{dir}/c.toml:2: ")), "{text}");
}

#[test]
fn a_diamond_is_applied_once_and_in_order() {
    let files = Memory::default()
        .profile("top", "schema = 1\nincludes = [\"left\", \"right\"]\n")
        .profile("left", "schema = 1\nincludes = [\"bottom\"]\n[limits]\nprocesses = 10\n")
        .profile("right", "schema = 1\nincludes = [\"bottom\"]\n")
        .profile("bottom", "schema = 1\nincludes = []\n[limits]\nprocesses = 20\n");
    assert_eq!(policy(&request("top"), &files).limits.processes, Some(10));
}

#[test]
fn a_profile_can_be_a_file() {
    let files = Memory::default().with("/home/user/project/p.toml", "schema = 1\n[filesystem]\nread = [\"../data\"]\n");
    for name in ["p.toml", "./p.toml", "/home/user/project/p.toml"] {
        assert_eq!(access(&policy(&request(name), &files), "/home/user/data"), Some(Access::Read));
    }
    assert!(error(&request("../../etc/passwd"), &Memory::default()).contains("no profile"));
    // A name never leads out of the profile directory.
    let files = Memory::default().with("/home/user/.config/hermes-sandbox/profiles/.x.toml", "schema = 1\n");
    assert!(error(&request(".x"), &files).contains("no profile \".x\""));
}

#[test]
fn a_builtin_cannot_be_replaced() {
    let files = Memory::default().profile("agent", "schema = 1\nincludes = []\n");
    assert_eq!(access(&policy(&request("agent"), &files), "/usr"), Some(Access::Read));
}

#[test]
fn too_many_includes_are_refused() {
    let mut files = Memory::default();
    for n in 0..200 {
        files = files.profile(&format!("p{n}"), &format!("schema = 1\nincludes = [\"p{}\"]\n", n + 1));
    }
    assert!(error(&request("p0"), &files).contains("more than 64 profiles"));
}

#[test]
fn hidden_stays_hidden_and_the_last_access_wins() {
    let files = Memory::default()
        .profile("below", "schema = 1\n[filesystem]\nhide = [\"/srv/a\"]\nread = [\"/srv/b\"]\nwrite = [\"/srv/c\"]\n")
        .profile(
            "mine",
            "schema = 1\nincludes = [\"below\"]\n[filesystem]\nwrite = [\"/srv/a\", \"/srv/b\"]\nread = [\"/srv/c\"]\n",
        );
    let policy = policy(&request("mine"), &files);
    assert_eq!(access(&policy, "/srv/a/x"), Some(Access::Hidden));
    assert_eq!(access(&policy, "/srv/b/x"), Some(Access::Write));
    assert_eq!(access(&policy, "/srv/c/x"), Some(Access::Read));
}

#[test]
fn paths_are_expanded_as_documented() {
    for (text, wanted) in [
        ("~", "/home/user"),
        ("~/a/./b/../c", "/home/user/a/c"),
        ("$HOME/x", "/home/user/x"),
        ("${DIR}/x", "/dir/x"),
        ("/a/${EMPTY:-b}/c", "/a/b/c"),
        ("${NONE:-~/x}", "/home/user/x"),
        ("${NONE:-${NONE:-/deep}}/x", "/deep/x"),
        ("/a$$b", "/a$b"),
        ("/a//b/", "/a/b"),
        ("/../../a", "/a"),
        ("rel/x", "/p/rel/x"),
        ("/with space/ü", "/with space/ü"),
    ] {
        let files = Memory::default().with("/p/p.toml", format!("schema = 1\nincludes = []\n[filesystem]\nread = ['{text}']\n"));
        let caller = caller(&[("DIR", "/dir/"), ("EMPTY", "")]);
        let policy = policy(&Request { caller, ..request("/p/p.toml") }, &files);
        assert!(policy.files.iter().any(|rule| rule.path == Path::new(wanted)), "{text}: {:?}", policy.files);
    }
}

#[test]
fn optional_rules_may_lack_what_they_are_made_of() {
    let text = "schema = 1\nincludes = []\n[filesystem]\nread = [\"?$NONE/x\", \"?~/y\"]\nhide = [\"~/z\"]\ncache = [\"~/c\"]\n";
    let files = Memory::default().with("/p/p.toml", text);
    let mut request = request("/p/p.toml");
    request.caller.home = None;
    assert_eq!(policy(&request, &files).files.len(), 1 + 2, "the workspace and the two settings directories");
    let files = Memory::default().with("/p/p.toml", "schema = 1\nincludes = []\n[filesystem]\nread = [\"~/y\"]\n");
    let text = error(&request, &files);
    assert!(text.contains("p.toml:4: ~/y: \"~\" needs a home directory; HOME is not set to an absolute path"), "{text}");
}

#[test]
fn unreadable_files_are_errors() {
    struct Broken;
    impl hermes_profiles::Files for Broken {
        fn read(&self, _: &Path) -> std::io::Result<Vec<u8>> {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
    }
    let text = message(resolve(&request("agent"), &Broken));
    assert!(text.starts_with("/home/user/.config/hermes-sandbox/config.toml: cannot be read: permission denied"), "{text}");
}

#[test]
fn a_route_says_more_than_a_host() {
    let text = r#"schema = 1
[[network.route]]
host = "Bücher.example.test."
[[network.route]]
host = "*.BÜCHER.example.test"
[[network.route]]
host = "api.example.test"
methods = ["GET", "POST"]
paths = ["/v1/**"]
max-body = "10MiB"
secret = { name = "model", header = "Authorization", format = "Bearer {}" }
upstream = "https://[2001:db8::1]:8443/inference/"
addresses = ["10.1.0.0/16", "2001:db8::1"]
rate = "60/m"
"#;
    let files = Memory::default().with("/p.toml", text);
    let policy = policy(&request("/p.toml"), &files);
    let Network::Routes(routes) = policy.network else { panic!() };
    let hosts: Vec<_> = routes.iter().map(|route| route.host.as_str()).collect();
    assert_eq!(hosts, ["*.xn--bcher-kva.example.test", "api.example.test", "xn--bcher-kva.example.test"]);
    let rules = &routes[1].rules;
    assert_eq!(
        (rules.methods.join(" "), rules.paths.join(" "), rules.max_body),
        ("GET POST".into(), "/v1/**".into(), Some(10 << 20))
    );
    let secret = rules.secret.as_ref().unwrap();
    assert_eq!((secret.name.as_str(), secret.header.as_str(), secret.format.as_str()), ("model", "authorization", "Bearer {}"));
    assert_eq!(rules.upstream.as_ref().unwrap().to_string(), "https://[2001:db8::1]:8443/inference");
    assert!(rules.addresses[0].contains("10.1.255.255".parse().unwrap()));
    assert!(!rules.addresses[0].contains("10.2.0.0".parse().unwrap()));
    assert!(rules.needs_inspection() && !routes[0].rules.needs_inspection());
}
