//! What names of variables mean.

/// Well-known variables that tell programs about the person, the place and the build, and hold no secret. Sorted.
#[rustfmt::skip]
pub(super) const KNOWN: &[&str] = &[
    "ANDROID_HOME", "ANDROID_SDK_ROOT", "ANT_HOME", "AR", "ASDF_DATA_DIR", "ASDF_DIR", "BUILDKITE", "BUILDKITE_BRANCH",
    "BUILDKITE_BUILD_NUMBER", "BUILDKITE_COMMIT", "BUILDKITE_TAG", "BUILD_NUMBER", "BUNDLE_GEMFILE", "BUNDLE_JOBS",
    "BUNDLE_PATH", "BUNDLE_WITHOUT", "BUN_INSTALL", "CC", "CFLAGS", "CGO_CFLAGS", "CGO_ENABLED", "CGO_LDFLAGS", "CI",
    "CIRCLECI", "CIRCLE_BRANCH", "CIRCLE_BUILD_NUM", "CIRCLE_JOB", "CIRCLE_SHA1", "CIRCLE_TAG", "CI_COMMIT_BRANCH",
    "CI_COMMIT_REF_NAME", "CI_COMMIT_REF_SLUG", "CI_COMMIT_SHA", "CI_COMMIT_SHORT_SHA", "CI_COMMIT_TAG", "CI_CONCURRENT_ID",
    "CI_DEFAULT_BRANCH", "CI_JOB_ID", "CI_JOB_NAME", "CI_JOB_STAGE", "CI_MERGE_REQUEST_IID", "CI_NODE_INDEX", "CI_NODE_TOTAL",
    "CI_PIPELINE_ID", "CI_PIPELINE_IID", "CI_PIPELINE_SOURCE", "CI_PROJECT_DIR", "CI_PROJECT_ID", "CI_PROJECT_NAME",
    "CI_PROJECT_NAMESPACE", "CI_PROJECT_PATH", "CI_SERVER", "CI_SERVER_HOST", "CI_SERVER_NAME", "CI_SERVER_VERSION",
    "CLICOLOR", "CLICOLOR_FORCE", "CMAKE_BUILD_PARALLEL_LEVEL", "CMAKE_BUILD_TYPE", "CMAKE_EXPORT_COMPILE_COMMANDS",
    "CMAKE_GENERATOR", "CMAKE_PREFIX_PATH", "COLORFGBG", "COLORTERM", "COLUMNS", "CONDA_DEFAULT_ENV", "CONDA_PREFIX",
    "CONTINUOUS_INTEGRATION", "COREPACK_HOME", "CPATH", "CPLUS_INCLUDE_PATH", "CPP", "CPPFLAGS", "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES", "CURL_CA_BUNDLE", "CXX", "CXXFLAGS", "C_INCLUDE_PATH", "DEBIAN_FRONTEND", "DEBUG", "DENO_DIR",
    "DENO_INSTALL", "DOTNET_CLI_TELEMETRY_OPTOUT", "DOTNET_NOLOGO", "DOTNET_ROOT", "DO_NOT_TRACK", "DRONE", "DRONE_BRANCH",
    "DRONE_BUILD_NUMBER", "DRONE_COMMIT", "EDITOR", "FNM_DIR", "FNM_MULTISHELL_PATH", "FORCE_COLOR", "FORCE_HYPERLINK",
    "GEM_HOME", "GEM_PATH", "GITHUB_ACTION", "GITHUB_ACTIONS", "GITHUB_ACTOR", "GITHUB_ACTOR_ID", "GITHUB_API_URL",
    "GITHUB_BASE_REF", "GITHUB_EVENT_NAME", "GITHUB_GRAPHQL_URL", "GITHUB_HEAD_REF", "GITHUB_JOB", "GITHUB_REF",
    "GITHUB_REF_NAME", "GITHUB_REF_PROTECTED", "GITHUB_REF_TYPE", "GITHUB_REPOSITORY", "GITHUB_REPOSITORY_ID",
    "GITHUB_REPOSITORY_OWNER", "GITHUB_RETENTION_DAYS", "GITHUB_RUN_ATTEMPT", "GITHUB_RUN_ID", "GITHUB_RUN_NUMBER",
    "GITHUB_SERVER_URL", "GITHUB_SHA", "GITHUB_TRIGGERING_ACTOR", "GITHUB_WORKFLOW", "GITHUB_WORKFLOW_REF",
    "GITHUB_WORKFLOW_SHA", "GITHUB_WORKSPACE", "GITLAB_CI", "GIT_AUTHOR_DATE", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_NAME",
    "GIT_CEILING_DIRECTORIES", "GIT_COMMITTER_DATE", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_NAME",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_OPTIONAL_LOCKS", "GIT_SSL_CAINFO", "GIT_TERMINAL_PROMPT", "GO111MODULE",
    "GOAMD64", "GOARCH", "GOARM", "GOBIN", "GOCACHE", "GODEBUG", "GOEXPERIMENT", "GOFLAGS", "GOGC", "GOMAXPROCS",
    "GOMEMLIMIT", "GOMODCACHE", "GONOPROXY", "GONOSUMDB", "GOOS", "GOPATH", "GOPRIVATE", "GOPROXY", "GOROOT", "GOSUMDB",
    "GOTOOLCHAIN", "GRADLE_HOME", "GRADLE_USER_HOME", "GREP_COLOR", "GREP_COLORS", "HF_HUB_OFFLINE", "HOME",
    "HOMEBREW_CELLAR", "HOMEBREW_PREFIX", "HOMEBREW_REPOSITORY", "HOSTNAME", "INFOPATH", "JAVA_HOME", "JDK_HOME",
    "KOTLIN_HOME", "LANG", "LANGUAGE", "LDFLAGS", "LESS", "LESSCHARSET", "LIBRARY_PATH", "LINES", "LOCALE_ARCHIVE", "LOGNAME",
    "LOG_LEVEL", "LS_COLORS", "M2_HOME", "MAKEFLAGS", "MAKELEVEL", "MANPATH", "MAVEN_HOME", "MFLAGS", "MISE_DATA_DIR",
    "MISE_SHELL", "MKL_NUM_THREADS", "MPLBACKEND", "NINJA_STATUS", "NIX_PATH", "NIX_PROFILES", "NIX_SSL_CERT_FILE", "NM",
    "NODE_ENV", "NODE_EXTRA_CA_CERTS", "NODE_NO_WARNINGS", "NO_COLOR", "NPM_CONFIG_CACHE", "NPM_CONFIG_PREFIX",
    "NUMEXPR_NUM_THREADS", "NVM_BIN", "NVM_DIR", "NVM_INC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PAGER", "PATH",
    "PKG_CONFIG", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_PATH", "PKG_CONFIG_SYSROOT_DIR", "PNPM_HOME", "POETRY_CACHE_DIR",
    "POETRY_VIRTUALENVS_IN_PROJECT", "PWD", "PYENV_ROOT", "PYENV_VERSION", "RACK_ENV", "RAILS_ENV", "RANLIB", "RBENV_ROOT",
    "RBENV_VERSION", "REQUESTS_CA_BUNDLE", "RUNNER_ARCH", "RUNNER_NAME", "RUNNER_OS", "RUSTDOCFLAGS", "RUSTFLAGS",
    "SCALA_HOME", "SDKMAN_DIR", "SHELL", "SHLVL", "SOURCE_DATE_EPOCH", "SSL_CERT_DIR", "SSL_CERT_FILE", "STRIP", "TERM",
    "TERMINFO", "TERMINFO_DIRS", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TF_BUILD", "TRANSFORMERS_OFFLINE", "TRAVIS",
    "TRAVIS_BRANCH", "TRAVIS_COMMIT", "TZ", "TZDIR", "USER", "VERBOSE", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "VISUAL",
    "VOLTA_HOME", "YARN_CACHE_FOLDER", "npm_config_cache", "npm_config_prefix",
];

/// Beginnings of names of which the scrub takes the few that are not harmless.
const KNOWN_PREFIXES: &[&str] = &["LC_", "RUST_", "RUSTUP_", "CARGO_", "PYTHON", "PIP_", "UV_", "TOKENIZERS_", "XDG_"];

/// Variables that make a shell, a linker, an interpreter or a tool run code that the program did not ask for. Sorted.
///
/// None of them could harm the host: what they make a program run runs inside, as confined as the command, and a job can
/// set them itself. What must not get in is secrets, and those are found by name and value, whatever the variable is for.
/// These stay out because they put code that the command does not name before or around all that it runs, from a place that
/// may be missing inside, or that the job of another sandbox could write. For the same reason some values do
/// ([`holds_program`]). A variable that only chooses the program for a task that the command asks for (`CC`, `EDITOR`,
/// `PAGER`), or how it is done (`MAKEFLAGS=-j8`), is how the caller works, and stays.
#[rustfmt::skip]
const INJECTING: &[&str] = &[
    "BASHOPTS", "BASH_ENV", "CDPATH", "CLASSPATH", "COMPILER_PATH", "ENV", "GCC_EXEC_PREFIX", "GCONV_PATH", "GIT_ASKPASS",
    "GIT_EDITOR", "GIT_EXEC_PATH", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_PROXY_COMMAND", "GIT_SEQUENCE_EDITOR", "GIT_SSH",
    "GIT_SSH_COMMAND", "GIT_TEMPLATE_DIR", "GLIBC_TUNABLES", "GLOBIGNORE", "GRADLE_OPTS", "IFS", "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS", "LESSCLOSE", "LESSOPEN", "LUA_INIT", "MANPAGER", "MAVEN_OPTS", "NODE_OPTIONS", "NODE_PATH",
    "NODE_REPL_EXTERNAL_MODULE", "PERL5DB", "PERL5LIB", "PERL5OPT", "PERLLIB", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS4",
    "PYTHONBREAKPOINT", "PYTHONEXECUTABLE", "PYTHONHOME", "PYTHONINSPECT", "PYTHONSTARTUP", "RUBYLIB", "RUBYOPT", "RUSTC",
    "RUSTDOC", "SHELLOPTS", "SSH_ASKPASS", "SUDO_ASKPASS", "ZDOTDIR", "_JAVA_OPTIONS",
];

/// Beginnings of such names.
const INJECTING_PREFIXES: &[&str] = &["LD_", "DYLD_", "BASH_FUNC_", "GIT_CONFIG", "LUA_INIT_"];

/// Ends of such names among the prefixes that pass: `CARGO_TARGET_*_RUNNER`, `RUSTC_WRAPPER`.
const INJECTING_SUFFIXES: &[&str] = &["_RUNNER", "_LINKER", "_WRAPPER", "_RUSTC", "_RUSTDOC"];

/// Options that do the same, in variables that mostly hold harmless ones: by the variable, beginnings of words.
const INJECTING_OPTIONS: &[(&[&str], &[&str])] = &[
    (&["MAKEFLAGS", "MFLAGS"], &["--eval", "-E", "SHELL", ".SHELLFLAGS", "MAKEFILES"]),
    (&["GOFLAGS"], &["-toolexec", "--toolexec", "-exec", "--exec"]),
    // A file of keys sets LESSOPEN; `+!` is a command to begin with.
    (&["LESS"], &["--lesskey", "-k", "+!", "++!", "+|", "++|"]),
    (
        &["CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "CGO_CFLAGS", "CGO_LDFLAGS"],
        &["-fplugin=", "-fpass-plugin=", "-wrapper", "-specs", "--specs"],
    ),
];

/// Variables that lead to somebody who acts for the caller. Sorted.
const AGENTS: &[&str] = &[
    "CONTAINER_HOST",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "DISPLAY",
    "DOCKER_HOST",
    "GNOME_KEYRING_CONTROL",
    "GPG_AGENT_INFO",
    "I3SOCK",
    "NOTIFY_SOCKET",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "SWAYSOCK",
    "TMUX",
    "VSCODE_GIT_IPC_HANDLE",
    "VSCODE_IPC_HOOK_CLI",
    "WAYLAND_DISPLAY",
    "WAYLAND_SOCKET",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
];

/// Words that mean a credential. Sorted.
const CREDENTIAL_WORDS: &[&str] = &[
    "APIKEYS",
    "AUTH",
    "AUTHORIZATION",
    "BEARER",
    "COOKIE",
    "COOKIES",
    "CRED",
    "CREDS",
    "DSN",
    "JWT",
    "KEY",
    "KEYS",
    "OTP",
    "PASS",
    "PAT",
    "PIN",
    "PW",
    "TOKENS",
    "WEBHOOK",
];

/// Ends of words that mean one: `PGPASSWORD`, `AUTHTOKEN`.
const CREDENTIAL_ENDS: &[&str] = &[
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
    "ACCESSKEY",
    "SECRETKEY",
    "PRIVATEKEY",
];

/// What a whole name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Known,
    Injecting,
    Agent,
}

const SLOTS: usize = 1024;

/// Whole names by hash, with linear probing. Built by the compiler: hundreds of names are looked up at every start.
static TABLE: [Option<(&str, Class)>; SLOTS] = {
    let mut table = [None; SLOTS];
    let lists: [(&[&str], Class); 3] = [(KNOWN, Class::Known), (INJECTING, Class::Injecting), (AGENTS, Class::Agent)];
    let mut list = 0;
    while list < lists.len() {
        let (names, class) = lists[list];
        let mut at = 0;
        while at < names.len() {
            let mut slot = slot(names[at].as_bytes());
            while table[slot].is_some() {
                slot = (slot + 1) % SLOTS;
            }
            table[slot] = Some((names[at], class));
            at += 1;
        }
        list += 1;
    }
    table
};

/// FNV-1a.
pub(super) const fn hash(name: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < name.len() {
        hash = (hash ^ name[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash ^ (hash >> 32)
}

const fn slot(name: &[u8]) -> usize {
    (hash(name) % SLOTS as u64) as usize
}

fn class(name: &[u8]) -> Option<Class> {
    let mut slot = slot(name);
    while let Some((known, class)) = TABLE[slot] {
        if known.as_bytes() == name {
            return Some(class);
        }
        slot = (slot + 1) % SLOTS;
    }
    None
}

fn starts(prefixes: &[&str], name: &[u8]) -> bool {
    prefixes.iter().any(|prefix| prefix.as_bytes().first() == name.first() && name.starts_with(prefix.as_bytes()))
}

pub(super) fn is_known(name: &[u8]) -> bool {
    class(name) == Some(Class::Known) || starts(KNOWN_PREFIXES, name)
}

pub(super) fn injects_code(name: &[u8]) -> bool {
    starts(INJECTING_PREFIXES, name)
        || INJECTING_SUFFIXES.iter().any(|suffix| name.ends_with(suffix.as_bytes()))
        || class(name) == Some(Class::Injecting)
}

/// Variables that choose programs, their options and their servers. Nothing to keep from a sandbox, whose caller works that
/// way, but nothing that a file from a sandbox should say to the caller's tools.
pub(super) fn steers(name: &[u8]) -> bool {
    const NAMES: [&str; 18] = [
        "AR",
        "BROWSER",
        "CC",
        "CXX",
        "DIRENV_CONFIG",
        "EDITOR",
        "FLASK_APP",
        "GOPROXY",
        "GOSUMDB",
        "HOME",
        "LD",
        "MANPATH",
        "PAGER",
        "PATH",
        "SHELL",
        "SSLKEYLOGFILE",
        "VIRTUAL_ENV",
        "VISUAL",
    ];
    const PREFIXES: [&str; 13] = [
        "BUNDLE_",
        "BUN_",
        "CARGO_",
        "COMPOSE_",
        "CONDA_",
        "DENO_",
        "DOCKER_",
        "GEM_",
        "GIT_",
        "NPM_CONFIG_",
        "PIP_",
        "PYTHON",
        "UV_",
    ];
    const SUFFIXES: [&str; 8] =
        ["_BASE_URL", "_CA_BUNDLE", "_CERT_FILE", "_EXTRA_CA_CERTS", "_OPTIONS", "_OPTS", "_PROXY", "FLAGS"];
    let upper = name.to_ascii_uppercase();
    NAMES.iter().any(|known| known.as_bytes() == upper)
        || starts(&PREFIXES, &upper)
        || SUFFIXES.iter().any(|suffix| upper.ends_with(suffix.as_bytes()))
}

/// Does the value make the tools that read the variable run code that the command did not ask for?
pub(super) fn holds_program(name: &[u8], value: &[u8]) -> bool {
    let Some((_, options)) = INJECTING_OPTIONS.iter().find(|(names, _)| names.iter().any(|known| known.as_bytes() == name))
    else {
        return false;
    };
    let words = || value.split(|b| b.is_ascii_whitespace() || matches!(b, b'\'' | b'"'));
    words().any(|word| options.iter().any(|option| word.starts_with(option.as_bytes())))
}

pub(super) fn is_locale(name: &[u8]) -> bool {
    name.starts_with(b"LANG") || name.starts_with(b"LC_")
}

pub(super) fn leads_to_agent(name: &[u8]) -> bool {
    class(name) == Some(Class::Agent)
}

/// Splits at everything that is neither letter nor digit, and forgets digits at the end of a word.
pub(super) fn means_credential(name: &[u8]) -> bool {
    let mut count = 0;
    name.split(|b| !b.is_ascii_alphanumeric()).any(|word| {
        let word = &word[..word.len() - word.iter().rev().take_while(|b| b.is_ascii_digit()).count()];
        count += usize::from(!word.is_empty());
        if word.len() < 2 {
            return false;
        }
        let last = word[word.len() - 1].to_ascii_uppercase();
        let ends = |end: &&str| {
            let start = word.len().checked_sub(end.len()).filter(|_| end.as_bytes().last() == Some(&last));
            start.is_some_and(|start| word[start..].eq_ignore_ascii_case(end.as_bytes()))
        };
        CREDENTIAL_WORDS.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
            || CREDENTIAL_ENDS.iter().any(ends)
            // PWD alone is the current directory; DB_PWD is not.
            || (count > 1 && word.eq_ignore_ascii_case(b"PWD"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_found() {
        for (table, wanted) in [(KNOWN, Class::Known), (INJECTING, Class::Injecting), (AGENTS, Class::Agent)] {
            assert!(table.is_sorted_by(|a, b| a < b), "{:?}", table.windows(2).find(|w| w[0] >= w[1]));
            assert!(table.iter().all(|name| class(name.as_bytes()) == Some(wanted)));
        }
        assert!(KNOWN.len() + INJECTING.len() + AGENTS.len() < SLOTS / 2);
        assert_eq!(class(b""), None);
    }

    #[test]
    fn what_is_known_survives_the_scrub() {
        for name in KNOWN {
            assert!(!injects_code(name.as_bytes()) && !leads_to_agent(name.as_bytes()), "{name}");
            assert!(!means_credential(name.as_bytes()), "{name}");
        }
    }
}
