//! `--backend docker`: our program in a container on this machine, by Docker or Podman.
//!
//! The container sees the workspace, what the policy names outside the system, and nothing else of this machine. Since these
//! trees are this machine's, they are guarded from here.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_backends::docker::clean::{self, Owner};
use hermes_backends::docker::container::Wanted;
use hermes_backends::docker::endpoint::Surroundings;
use hermes_backends::docker::launch::{self, this_program};
use hermes_backends::docker::mounts::{self, Grant};
use hermes_backends::docker::{self, Engine, Launched};
use hermes_backends::limits::TreeLimits;
use hermes_backends::survey::{Found, Survey};
use hermes_profiles::{Access, Caller, DockerMount, FileRule, Network, Origin, Policy, Pull};

use super::hello::{Enclosed, Hello};
use super::{Backend, Channel, FAR_COMMAND, Here, Later};
use crate::args::{BackendArgs, PolicyArgs};
use crate::changes;
use crate::engine;
use crate::error::Error;
use crate::events::Log;
use crate::guard::{self, Guards};
use crate::output;
use crate::request;

/// A container.
pub(super) struct Docker {
    image: Option<String>,
    place: Option<Place>,
    launched: Option<Launched>,
    guards: Option<Guards>,
    log: Log,
}

/// What is known before anything is started.
struct Place {
    wanted: Wanted,
    pull: launch::Pull,
    caller: Caller,
    policy: Policy,
    survey: Survey,
    /// `None` where no jobs run.
    command: Option<Vec<OsString>>,
    checkpoint: bool,
}

impl Docker {
    pub(super) fn new(place: &BackendArgs) -> Result<Self, Error> {
        let text = |image: &OsString| {
            image
                .clone()
                .into_string()
                .map_err(|image| Error::usage(format!("`{}` cannot be an image", output::clean(&image.to_string_lossy()))))
        };
        let image = place.image.as_ref().map(text).transpose()?;
        Ok(Self { image, place: None, launched: None, guards: None, log: Log::default() })
    }

    async fn start(&mut self) -> Result<Box<dyn Channel>, Error> {
        let Some(place) = &self.place else { return Err(Error::setup("no container was described")) };
        let engine = Engine::find(&Around(&place.caller)).await.map_err(refused)?;
        let owner = Owner::this().map_err(refused)?;
        // Before the trees are looked at: what is still alive there would go on writing.
        clean::sweep(&engine, &owner).await.map_err(refused)?;
        if let Some(command) = &place.command {
            if place.checkpoint {
                changes::needs_checkpoint(place.policy.workspace_access)?;
                changes::checkpoint(&place.caller, &[place.survey.real(&place.policy.workspace).to_owned()], command)?;
            }
            self.guards = begin_guards(place, command, &mut self.log)?;
        }
        let (launched, channel) = docker::launch(engine, &place.wanted, place.pull).await.map_err(refused)?;
        for notice in &launched.notices {
            output::complain(notice);
        }
        self.launched = Some(launched);
        Ok(Box::new(channel))
    }
}

/// Removes what dead processes of this user have left in the engine; the ids.
pub(super) fn sweep() -> Result<Vec<String>, Error> {
    let caller = request::caller(None)?;
    let cannot = |e: std::io::Error| Error::setup(format!("cannot speak with the container engine: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    runtime.block_on(async {
        let engine = Engine::find(&Around(&caller)).await.map_err(refused)?;
        clean::sweep(&engine, &Owner::this().map_err(refused)?).await.map_err(refused)
    })
}

pub(super) fn refused(error: docker::Error) -> Error {
    Error::setup(output::clean(&error.message)).hint(output::clean(&error.remedy))
}

/// Looks at what jobs can write, so that it can be brought back to what it was.
fn begin_guards(place: &Place, command: &[OsString], log: &mut Log) -> Result<Option<Guards>, Error> {
    let plan = engine::plan_of_trees(&place.policy, &place.survey, &place.caller)?;
    let mut begin = || -> Result<Option<Guards>, Error> {
        if let Some(state_dir) = &place.caller.state_dir {
            guard::recover(state_dir, &|tree| guard::concerns(&plan, tree), log)?;
        }
        let mut guards = Guards::begin(&plan, &place.policy.guard, &place.caller, command, log)?;
        if let Some(guards) = &mut guards {
            // Nothing can be covered in there: it is put aside when all has ended.
            guards.take_baseline(0)?;
        }
        Ok(guards)
    };
    guard::unless_accepted(begin(), &place.policy)
}

/// The caller's surroundings.
struct Around<'a>(&'a Caller);

impl Surroundings for Around<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        self.0.variable(name).and_then(|value| value.to_str()).map(str::to_owned)
    }

    fn read(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    fn list(&self, path: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }
}

/// The mounts that a profile names by themselves, as rules.
fn with_mounts(policy: &Policy) -> Policy {
    let rule = |mount: &DockerMount| FileRule {
        path: mount.source.clone(),
        access: if mount.write { Access::Write } else { Access::Read },
        optional: false,
        origin: mount.origin.clone(),
    };
    let mut policy = policy.clone();
    policy.files.extend(policy.docker.mounts.iter().map(rule));
    policy
}

fn grants(policy: &Policy, survey: &Survey) -> Result<Vec<Grant>, Error> {
    let mut grants = mounts::grants(policy, survey).map_err(refused)?;
    for mount in &policy.docker.mounts {
        let Found::Present { real, .. } = survey.get(&mount.source) else {
            return Err(Error::setup(format!("{} does not exist ({})", output::path(&mount.source), mount.origin))
                .hint("create it, or leave it out"));
        };
        grants.retain(|grant| grant.target != mount.target);
        grants.push(Grant { source: real.clone(), target: mount.target.clone(), writable: mount.write });
    }
    grants.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(grants)
}

/// Refuses what a policy cannot have in a container.
fn refuse_policy(policy: &Policy) -> Result<(), Error> {
    if policy.network == Network::Host {
        return Err(Error::usage("the host's network (--net host) cannot be given to a container")
            .hint("name what is needed with --allow-host"));
    }
    Ok(())
}

impl Backend for Docker {
    fn name(&self) -> String {
        match self.launched.as_ref() {
            Some(launched) => format!("the container {}", launched.short()),
            None => "a container".to_owned(),
        }
    }

    fn refuse(&self, args: &PolicyArgs) -> Result<(), Error> {
        match args.user {
            Some(_) => Err(Error::usage("--user cannot be used with --backend docker").hint("start it as that user")),
            None => Ok(()),
        }
    }

    fn is_here(&self) -> bool {
        true
    }

    fn prepare(&mut self, here: Here<'_>) -> Result<(), Error> {
        let Here { policy, caller, command, session, checkpoint, log } = here;
        let none = || {
            Error::usage("--backend docker needs --image")
                .hint("name the image: --image debian:12, or image in the profile's [docker]")
        };
        let image = self.image.clone().or(policy.docker.image.clone()).ok_or_else(none)?;
        refuse_policy(policy)?;
        let mounted = with_mounts(policy);
        let survey = engine::survey(&mounted);
        let grants = grants(policy, &survey)?;
        let owner = Owner::this().map_err(refused)?;
        let described = serde_json::to_vec(policy).unwrap_or_default();
        let limits = &policy.limits;
        let share = limits.memory_percent.map(|percent| engine::memory(caller) / 100 * u64::from(percent));
        let wanted = Wanted {
            image,
            platform: policy.docker.platform.clone(),
            program: this_program().map_err(refused)?,
            arguments: vec![FAR_COMMAND.to_owned()],
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            home: policy.home.dir.clone(),
            grants,
            limits: TreeLimits {
                memory: limits.memory.into_iter().chain(share).min(),
                processes: limits.processes,
                cpu_percent: limits.cpu_percent,
            },
            scratch: limits.scratch,
            shm: limits.shm,
            labels: owner.labels(&hermes_profiles::trust::hash(&described), session),
        };
        let pull = match policy.docker.pull {
            Pull::Never => launch::Pull::Never,
            Pull::Missing => launch::Pull::Missing,
        };
        self.log = log.another()?;
        self.place = Some(Place {
            wanted,
            pull,
            caller: caller.clone(),
            policy: mounted,
            survey,
            command: command.map(<[_]>::to_vec),
            checkpoint,
        });
        Ok(())
    }

    fn launch(&mut self) -> Later<'_, Result<Box<dyn Channel>, Error>> {
        Box::pin(self.start())
    }

    fn greet(&self, hello: &mut Hello) {
        let (Some(launched), Some(place)) = (&self.launched, &self.place) else { return };
        let asked = &mut hello.asked;
        asked.checkpoint = false;
        // What the image says about its own programs is meant, and is nobody's secret.
        let given = |name: &String| {
            asked.overrides.set_env.iter().any(|pair| pair.split_once('=').is_some_and(|(known, _)| known == name))
        };
        let own: Vec<String> = launched.environment.iter().map(|(name, _)| name.clone()).filter(|name| !given(name)).collect();
        let docker = &place.policy.docker;
        let more: Vec<String> =
            docker.env.iter().filter(|(name, _)| !given(name)).map(|(name, value)| format!("{name}={value}")).collect();
        asked.overrides.env.extend(own.into_iter().filter(|name| !docker.env.contains_key(name)));
        asked.overrides.set_env.extend(more);
        for mount in &docker.mounts {
            let list = if mount.write { &mut asked.overrides.rw } else { &mut asked.overrides.ro };
            list.push(mount.target.clone());
        }
        hello.enclosed = Some(Enclosed {
            enclosure: launched.enclosure,
            expected: launched.expected.clone(),
            writable: launched.volumes.clone(),
        });
    }

    fn epitaph(&mut self) -> Later<'_, Option<String>> {
        Box::pin(async {
            match &mut self.launched {
                Some(launched) => Some(output::clean(&launched.epitaph().await).into_owned()),
                None => None,
            }
        })
    }

    fn finish(&mut self) -> Later<'_, Result<(), Error>> {
        Box::pin(async {
            let removed = match self.launched.take() {
                Some(launched) => launched.remove().await.map_err(refused),
                None => Ok(()),
            };
            if let Some(guards) = self.guards.take() {
                guard::tell(&guards.settle()?, &mut self.log)?;
            }
            removed
        })
    }
}

/// Names in the root of an image that jobs may read: all that is not a place of its own.
pub(super) fn image_rules(policy: &Policy, writable: &[PathBuf]) -> Vec<FileRule> {
    const OWN: [&[u8]; 5] = [b"proc", b"dev", b"sys", b"tmp", b"run"];
    let entries = std::fs::read_dir("/").into_iter().flatten().flatten();
    let named = entries.filter(|entry| !OWN.contains(&entry.file_name().as_bytes()));
    let rule = |path: PathBuf, access| FileRule { path, access, optional: true, origin: Origin::Derived("the image".into()) };
    let volumes = writable.iter().map(|path| rule(path.clone(), Access::Write));
    let shown = named
        .map(|entry| entry.path())
        .filter(|path| path != Path::new(hermes_backends::docker::container::PROGRAM))
        .filter(|path| !writable.contains(path))
        .map(|path| rule(path, Access::Read));
    shown.chain(volumes).filter(|new| !policy.files.iter().any(|rule| rule.path == new.path)).collect()
}
