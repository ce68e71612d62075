//! Debian's packages of any suite, without changes to the machine's configuration or packages: apt
//! with its own directories. The mirror is that of the machine's sources; only the suite differs.

use anyhow::{Context, Result, bail, ensure};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Maximum age of a list of packages.
const LISTS_LAST: Duration = Duration::from_hours(24);

/// The packages of a suite.
#[derive(Debug)]
pub struct Apt {
    folder: PathBuf,
}

/// Runs a command to its end and returns its output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {}", output.status, error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Debian's keys, if the machine's sources name them. Without the file apt uses its own trusted
/// keys.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns the machine's mirror of Debian's main packages.
fn mirror() -> Result<String> {
    let format = "$(REPO_URI)|$(COMPONENT)";
    let targets = run(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))
        .context("no apt here")?;
    for target in targets.lines() {
        let mut fields = target.split('|');
        if let (Some(uri), Some("main")) = (fields.next(), fields.next())
            && uri.trim_end_matches('/').ends_with("/debian")
        {
            return Ok(uri.to_owned());
        }
    }
    bail!("the machine's package sources have no mirror of Debian's main packages")
}

/// Returns a suite's line of sources. Only the list of packages is downloaded, whatever else the
/// machine's apt is configured for (such as apt-file's lists of files): a mirror that is being
/// synchronized would refuse everything because of it.
fn source(uri: &str, suite: &str) -> String {
    let signed = if Path::new(KEYS).exists() { format!(" signed-by={KEYS}") } else { String::new() };
    format!("deb [target=Packages{signed}] {uri} {suite} main\n")
}

impl Apt {
    /// Reads a suite's list of packages. That of backports includes that of its suite.
    pub fn of(cache: &Path, suite: &str) -> Result<Apt> {
        let folder = cache.join("apt").join(suite);
        let apt = Apt { folder };
        for part in ["lists/partial", "archives/partial", "download"] {
            std::fs::create_dir_all(apt.folder.join(part))?;
        }
        let fresh = apt.folder.join("fresh");
        let age = fresh.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age < LISTS_LAST) {
            return Ok(apt);
        }
        let uri = mirror()?;
        let base = suite.strip_suffix("-backports");
        let sources = [Some(suite), base].into_iter().flatten().map(|suite| source(&uri, suite));
        std::fs::write(apt.folder.join("sources.list"), sources.collect::<String>())?;
        let at = apt.folder.display();
        let config = format!(
            "Dir::Etc::sourcelist \"{at}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Dir::State::lists \"{at}/lists\";\nDir::Cache \"{at}\";\nDir::Cache::archives \"{at}/archives\";\n\
             APT::Sandbox::User \"root\";\n"
        );
        std::fs::write(apt.folder.join("config"), config)?;
        run(apt.command("apt-get").args(["-q", "update"])).with_context(|| format!("the packages of {suite}"))?;
        std::fs::write(fresh, "")?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("config"));
        command
    }

    /// Returns the packages with this prefix.
    pub fn names(&self, begin: &str) -> Result<Vec<String>> {
        Ok(run(self.command("apt-cache").args(["pkgnames", begin]))?.lines().map(str::to_owned).collect())
    }

    /// Downloads packages without their dependencies.
    pub fn download(&self, packages: &[String]) -> Result<Vec<PathBuf>> {
        let folder = self.folder.join("download");
        run(self.command("apt-get").arg("-q").arg("download").args(packages).current_dir(&folder))?;
        files(&folder)
    }

    /// Downloads packages with those dependencies that the machine lacks.
    pub fn download_for_use(&self, packages: &[String]) -> Result<Vec<PathBuf>> {
        let options = ["-q", "-y", "--no-install-recommends", "--download-only", "install"];
        run(self.command("apt-get").args(options).args(packages))?;
        files(&self.folder.join("archives"))
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let paths = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "deb")).collect())
}

/// Unpacks a package.
pub fn unpack(package: &Path, into: &Path) -> Result<()> {
    std::fs::create_dir_all(into)?;
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(into)).map(drop)
}

/// Orders names with numbers in them by the numbers.
pub fn version_order(a: &str, b: &str) -> Ordering {
    let pieces = |text: &str| -> Vec<(u64, String)> {
        let numbers = text.split(|c: char| !c.is_ascii_digit());
        numbers.filter(|piece| !piece.is_empty()).map(|piece| (piece.parse().unwrap_or(0), piece.to_owned())).collect()
    };
    pieces(a).cmp(&pieces(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the configuration of apt-file: `Contents` for all of apt's own commands.
    #[test]
    fn only_the_packages_of_a_suite_are_requested() {
        let folder = std::env::temp_dir().join(format!("fsvm-apt-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (config, list) = (folder.join("config"), folder.join("sources.list"));
        std::fs::write(&list, source("http://mirror.invalid/debian", "bookworm")).unwrap();
        let text = format!(
            "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"/dev/null\";\nDir::State::lists \"{}\";\n\
             Acquire::IndexTargets::deb::Contents-deb {{ MetaKey \"$(COMPONENT)/Contents-$(ARCHITECTURE)\"; DefaultEnabled \
             \"true\"; }};\n",
            list.display(),
            folder.display(),
        );
        std::fs::write(&config, text).unwrap();
        let mut targets = Command::new("apt-get");
        targets.args(["indextargets", "--format", "$(CREATED_BY)", "--no-release-info"]).env("APT_CONFIG", &config);
        let targets = run(&mut targets).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let (first, more) = (targets.lines().next(), targets.lines().find(|target| *target != "Packages"));
        assert_eq!((first, more), (Some("Packages"), None));
    }

    #[test]
    fn releases_are_ordered_by_their_numbers() {
        let mut names =
            ["linux-image-6.12.9+deb13-amd64", "linux-image-7.3.4+deb13-amd64", "linux-image-6.12.107+deb13-amd64"];
        names.sort_by(|a, b| version_order(a, b));
        assert_eq!(names.map(|name| &name[12..20]), ["6.12.9+d", "6.12.107", "7.3.4+de"]);
    }
}
