//! From what is wanted to a running container and a channel to it.

use std::path::{Path, PathBuf};

use bollard::errors::Error as Failure;
use bollard::models::ImageInspect;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions,
    StartContainerOptions, WaitContainerOptionsBuilder,
};
use futures_util::StreamExt;
use hermes_profiles::ospath;
use tokio::task::JoinHandle;

use super::channel::LastWords;
use super::container::{self, Image, PROGRAM, Wanted};
use super::engine::{Facts, one_line};
use super::mounts::{self, Expected};
use super::{Channel, Engine, Error, clean};
use crate::host::Enclosure;

/// May an image be fetched from a registry?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pull {
    /// No.
    #[default]
    Never,
    /// Where the engine does not have it.
    Missing,
}

/// A running container.
#[derive(Debug)]
pub struct Launched {
    engine: Engine,
    id: String,
    ended: JoinHandle<Option<i64>>,
    last_words: LastWords,
    memory_limited: bool,
    /// Variables of the image, the base of what jobs get.
    pub environment: Vec<(String, String)>,
    /// Directories for which the image wants a volume; they are in memory and end with the container.
    pub volumes: Vec<PathBuf>,
    /// What the far side must find before it starts a job.
    pub expected: Vec<Expected>,
    /// What the container holds already.
    pub enclosure: Enclosure,
    /// What a person should be told.
    pub notices: Vec<String>,
}

/// This program's path, for the engine to mount.
///
/// # Errors
/// Its file is not there any more.
pub fn this_program() -> Result<PathBuf, Error> {
    let gone = |why: String| {
        Error::new(
            format!("the file of this program cannot be mounted in a container: {why}"),
            "start it again from where it is installed",
        )
    };
    let path = std::fs::read_link("/proc/self/exe").map_err(|error| gone(error.to_string()))?;
    let running = std::fs::metadata("/proc/self/exe").map_err(|error| gone(error.to_string()))?;
    let found = std::fs::symlink_metadata(&path).map_err(|error| gone(format!("{}: {error}", path.display())))?;
    use std::os::unix::fs::MetadataExt;
    match (running.dev(), running.ino()) == (found.dev(), found.ino()) {
        true => Ok(path),
        false => Err(gone(format!("{} was replaced since it was started", path.display()))),
    }
}

/// Which limits the container holds.
pub fn enclosure(facts: &Facts, wanted: &Wanted) -> Enclosure {
    let limits = &wanted.limits;
    Enclosure {
        memory: limits.memory.is_some() && facts.limits_memory,
        processes: limits.processes.is_some() && facts.limits_processes,
        cpu: limits.cpu_percent.is_some() && facts.limits_cpu,
    }
}

/// Makes the container, attaches to it, and starts it.
///
/// # Errors
/// One line: what failed and what to do. No container is left then.
pub async fn launch(engine: Engine, wanted: &Wanted, pull: Pull) -> Result<(Launched, Channel), Error> {
    mounts::refuse_dangerous(&wanted.grants, &engine.facts)?;
    let image = image(&engine, wanted, pull).await?;
    let mut expected = mounts::expected(&wanted.grants)?;
    expected.push(mounts::identity(&wanted.program, Path::new(PROGRAM))?);
    let body = container::body(&engine.facts, wanted, &image);
    let mut options = CreateContainerOptionsBuilder::new();
    if let Some(platform) = &wanted.platform {
        options = options.platform(platform);
    }
    let made = engine.docker.create_container(Some(options.build()), body).await;
    let made = made.map_err(|failure| engine.explain("make a container", &failure))?;
    match start(&engine, &made.id).await {
        Ok((channel, ended, last_words)) => {
            let notices = notices(wanted);
            let memory_limited = wanted.limits.memory.is_some();
            let enclosure = enclosure(&engine.facts, wanted);
            let Image { environment, volumes, .. } = image;
            let volumes = volumes.into_iter().map(PathBuf::from).collect();
            Ok((
                Launched {
                    engine,
                    id: made.id,
                    ended,
                    last_words,
                    memory_limited,
                    environment,
                    volumes,
                    expected,
                    enclosure,
                    notices,
                },
                channel,
            ))
        }
        Err(failure) => {
            let error = engine.explain("start the container", &failure);
            clean::remove(&engine, &made.id).await?;
            Err(why_not_started(error, wanted))
        }
    }
}

type Started = (Channel, JoinHandle<Option<i64>>, LastWords);

async fn start(engine: &Engine, id: &str) -> Result<Started, Failure> {
    let options = AttachContainerOptionsBuilder::new().stdin(true).stdout(true).stderr(true).stream(true).logs(false).build();
    // Before the start, so that nothing is missed.
    let attached = engine.docker.attach_container(id, Some(options)).await?;
    let last_words = LastWords::default();
    let channel = Channel::new(attached, last_words.clone());
    let (docker, waited) = (engine.docker.clone(), id.to_owned());
    let ended = tokio::spawn(async move {
        let options = WaitContainerOptionsBuilder::new().condition("next-exit").build();
        match docker.wait_container(&waited, Some(options)).next().await {
            Some(Ok(answer)) => Some(answer.status_code),
            Some(Err(Failure::DockerContainerWaitError { code, .. })) => Some(code),
            _ => None,
        }
    });
    engine.docker.start_container(id, None::<StartContainerOptions>).await.inspect_err(|_| ended.abort())?;
    Ok((channel, ended, last_words))
}

fn why_not_started(error: Error, wanted: &Wanted) -> Error {
    if error.message.contains("exec format error") {
        return Error::new(error.message, "use an image and an engine of this machine's architecture");
    }
    if error.message.contains("bind source path does not exist") || error.message.contains("no such file or directory") {
        let program = wanted.program.display();
        let remedy = format!(
            "the engine must see the same files as this program ({program}): use one of this machine, not in a container or a virtual machine of its own"
        );
        return Error::new(error.message, remedy);
    }
    error
}

fn notices(wanted: &Wanted) -> Vec<String> {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let unseen = |source: &Path| format!("file systems mounted below {} are not seen in the container", ospath::escaped(source));
    mounts::hidden_below(&wanted.grants, &mountinfo).into_iter().map(unseen).collect()
}

/// The image, fetched if that is allowed, and what it brings.
async fn image(engine: &Engine, wanted: &Wanted, pull: Pull) -> Result<Image, Error> {
    let name = wanted.image.as_str();
    let shown = one_line(name);
    let failed = |failure: Failure| engine.explain(&format!("look at the image {shown}"), &failure);
    let missing = |failure: &Failure| matches!(failure, Failure::DockerResponseServerError { status_code: 404, .. });
    let found = match (engine.docker.inspect_image(name).await, pull) {
        (Err(failure), Pull::Missing) if missing(&failure) => {
            fetch(engine, wanted).await?;
            engine.docker.inspect_image(name).await.map_err(failed)?
        }
        (Err(failure), Pull::Never) if missing(&failure) => {
            return Err(Error::new(
                format!(
                    "{} at {} has no image {shown}, and images are not fetched unasked",
                    engine.facts.kind.name(),
                    engine.facts.socket.display()
                ),
                format!("`docker pull {shown}`, or pull = \"missing\" in the profile's [docker]"),
            ));
        }
        (found, _) => found.map_err(failed)?,
    };
    check_architecture(&found, &shown, go_architecture())?;
    let ImageInspect { id, config, .. } = found;
    let config = config.unwrap_or_default();
    let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(Image {
        id: id.unwrap_or_else(|| name.to_owned()),
        environment: config.env.iter().flatten().filter_map(pair).collect(),
        volumes: config.volumes.unwrap_or_default(),
    })
}

async fn fetch(engine: &Engine, wanted: &Wanted) -> Result<(), Error> {
    let (name, shown) = (wanted.image.as_str(), one_line(&wanted.image));
    let mut options = CreateImageOptionsBuilder::new().from_image(name);
    // Without a tag the engine would fetch all of them.
    let last = name.rsplit('/').next().unwrap_or(name);
    if !last.contains([':', '@']) {
        options = options.tag("latest");
    }
    if let Some(platform) = &wanted.platform {
        options = options.platform(platform);
    }
    let mut steps = engine.docker.create_image(Some(options.build()), None, None);
    while let Some(step) = steps.next().await {
        step.map_err(|failure| {
            let error = engine.explain(&format!("fetch the image {shown}"), &failure);
            match error.remedy.contains("docker system df") {
                true => error,
                false => Error::new(
                    error.message,
                    "look whether the registry can be reached and the name is right, or load it by `docker load`",
                ),
            }
        })?;
    }
    Ok(())
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The program that is mounted is one of this machine's architecture, and so must be what jobs run.
fn check_architecture(image: &ImageInspect, name: &str, ours: &str) -> Result<(), Error> {
    match image.architecture.as_deref() {
        None | Some("") => Ok(()),
        Some(theirs) if theirs == ours => Ok(()),
        Some(theirs) => Err(Error::new(
            format!("the image {name} is for {}, this machine is {ours}", one_line(theirs)),
            format!("`docker pull --platform linux/{ours} {name}`"),
        )),
    }
}

impl Launched {
    /// What keeps it from answering, as far as the engine knows.
    async fn trouble(&self) -> Option<Error> {
        match self.engine.docker.inspect_container(&self.id, None::<InspectContainerOptions>).await {
            Ok(found) if found.state.as_ref().and_then(|state| state.paused) == Some(true) => Some(Error::new(
                format!("the container {} is paused", self.short()),
                format!("`docker unpause {}`", self.short()),
            )),
            Ok(_) => None,
            Err(Failure::DockerResponseServerError { status_code: 404, .. }) => {
                Some(Error::new(format!("the container {} was removed", self.short()), "start again"))
            }
            Err(failure) => Some(self.engine.explain("say how the container is", &failure)),
        }
    }

    /// Why the program in it has ended, after the end of the channel.
    pub async fn epitaph(&mut self) -> String {
        let short = self.short().to_owned();
        let patience = std::time::Duration::from_secs(5);
        let status = tokio::time::timeout(patience, &mut self.ended).await.ok().and_then(Result::ok).flatten();
        let words = self.last_words.line().map(|line| format!(": {line}")).unwrap_or_default();
        match status {
            Some(137) if self.memory_limited => {
                format!("the container {short} was killed, perhaps at its limit of memory{words}")
            }
            Some(137) => format!("the container {short} was killed{words}"),
            Some(status) => format!("the program in the container {short} ended with status {status}{words}"),
            None => match self.trouble().await {
                Some(Error { message, remedy }) => format!("{message}; {remedy}{words}"),
                None => format!("the connection to the container {short} has ended{words}"),
            },
        }
    }

    /// Ends and removes it.
    ///
    /// # Errors
    /// The engine does not.
    pub async fn remove(self) -> Result<(), Error> {
        self.ended.abort();
        clean::remove(&self.engine, &self.id).await
    }

    /// Its id, as people see it.
    pub fn short(&self) -> &str {
        self.id.get(..12).unwrap_or(&self.id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn other_architectures_are_refused() {
        let image = |text: &str| ImageInspect { architecture: Some(text.into()), ..ImageInspect::default() };
        check_architecture(&image("amd64"), "i", "amd64").unwrap();
        check_architecture(&image(""), "i", "amd64").unwrap();
        let error = check_architecture(&image("arm64"), "i", "amd64").unwrap_err();
        assert_eq!(error.message, "the image i is for arm64, this machine is amd64");
    }
}
