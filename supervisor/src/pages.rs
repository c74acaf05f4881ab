//! Completion scripts and manual pages, made from the description of the command line.

use std::io::Write as _;

use crate::args;
use crate::error::Error;
use crate::output;

/// Prints the completion script for a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Error> {
    output::print(&script(shell))
}

fn script(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::tree(), "hermes-sandbox", &mut script);
    // For bash the generator takes the hyphen of our name for a word's end in one place and not in the other.
    String::from_utf8_lossy(&script).replace("hermes__subcmd__sandbox__subcmd__", "hermes__sandbox__subcmd__")
}

/// Prints the manual page of the program or of a subcommand.
pub(crate) fn man(subcommand: Option<&str>) -> Result<(), Error> {
    output::print(&String::from_utf8_lossy(&page(subcommand)?))
}

fn page(subcommand: Option<&str>) -> Result<Vec<u8>, Error> {
    let mut tree = args::tree();
    tree.build();
    let command = match subcommand {
        None => &tree,
        Some(name) => tree
            .find_subcommand(name)
            .ok_or_else(|| Error::usage(format!("no such subcommand: `{name}`")).hint("`hermes-sandbox --help` lists them"))?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .and_then(|()| page.flush())
        .map_err(|e| Error::setup(format!("cannot write the manual page: {e}")))?;
    Ok(page)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bash_completes_subcommands_of_subcommands() {
        let ask = "COMP_WORDS=(hermes-sandbox session exec --b); COMP_CWORD=3; _hermes-sandbox hermes-sandbox --b exec; \
                   echo ${COMPREPLY[@]}";
        let bash =
            std::process::Command::new("bash").args(["-c", &format!("{}\n{ask}", script(clap_complete::Shell::Bash))]).output();
        let Ok(said) = bash else { return };
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "--background", "{said:?}");
    }

    #[test]
    fn pages_name_the_options_that_exist() {
        let run = String::from_utf8(page(Some("run")).unwrap()).unwrap();
        assert!(run.contains("allow\\-host") && run.contains("ssh\\-host") && !run.contains("scratch\\-at"));
        assert!(String::from_utf8(page(None).unwrap()).unwrap().contains("doctor"));
        assert_eq!(page(Some("rnu")).unwrap_err().kind.status(), 125);
    }
}
