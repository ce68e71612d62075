//! Checks whether a program will load the library and route its socket calls through it, for
//! `fastsock run`'s warning. Reads the same headers as the kernel and the loader.

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of interpreters that Linux follows if the interpreter of a script is a script itself
/// (`BINPRM_BUF_SIZE`, fs/exec.c).
const INTERPRETERS_MAX: usize = 5;
/// Length of a script's first line that the kernel reads.
const LINE_MAX: usize = 256;

const MACHINE: u16 = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
/// Type of the build ID note that Go's linker writes into every program, by the owner "Go".
const GO_BUILD_ID: u32 = 4;

/// The reason why a program is not accelerated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A static program: it loads no library.
    Static,
    /// Go's runtime makes system calls itself.
    Go,
    /// 32-bit, or for another processor.
    OtherMachine,
    /// A C library other than the one of `libfastsock.so`.
    OtherLoader(PathBuf),
    /// The program has more rights than its caller, so the loader ignores LD_PRELOAD.
    MoreRights,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("it is statically linked, so it loads no library"),
            Self::Go => f.write_str("it is a Go program, and Go's runtime makes system calls without the C library"),
            Self::OtherMachine => f.write_str(
                "it is built for another processor or for 32 bits, so it cannot load \
                                               the library",
            ),
            Self::OtherLoader(loader) => write!(f, "it uses another C library (its loader is {})", loader.display()),
            Self::MoreRights => f.write_str(
                "it runs with more privileges than yours (set-user-ID or capabilities), \
                                             so it ignores LD_PRELOAD",
            ),
        }
    }
}

/// Returns why `command` will not be accelerated, and which file that is (for a script, its
/// interpreter). `None` if nothing prevents it.
pub(crate) fn obstacle(command: &OsStr) -> Option<(PathBuf, Obstacle)> {
    let mut path = find(command)?;
    for _ in 0..=INTERPRETERS_MAX {
        let file = File::open(&path).ok()?;
        let mut head = [0; LINE_MAX];
        let n = read(&file, &mut head).ok()?;
        match interpreter(head.get(..n)?) {
            Some(next) => path = next,
            None => {
                let obstacle = obstacle_of(&file, &path)?;
                return Some((path, obstacle));
            }
        }
    }
    None
}

/// Finds the program's file as execvp(3) does.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let runs = |file: &PathBuf| file.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0);
    std::env::split_paths(&path).map(|directory| directory.join(command)).find(runs)
}

fn read(file: &File, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match { file }.read(rest)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Returns the interpreter of a script (`#!`); for /usr/bin/env, the program that it starts.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let program = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    if program.file_name() == Some(OsStr::new("env"))
        && let Some(started) = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
    {
        return find(OsStr::from_bytes(started));
    }
    Some(program)
}

fn obstacle_of(file: &File, path: &Path) -> Option<Obstacle> {
    let Some(Elf { is_program, loader, is_go }) = Elf::read(file)? else { return Some(Obstacle::OtherMachine) };
    if is_go {
        return Some(Obstacle::Go);
    }
    match loader {
        // The loader itself, run as a program, has no interpreter either.
        None if is_program => Some(Obstacle::Static),
        None => None,
        Some(loader) if !is_glibc(&loader) => Some(Obstacle::OtherLoader(loader)),
        Some(_) => file.metadata().is_ok_and(|meta| has_more_rights(&meta, path)).then_some(Obstacle::MoreRights),
    }
}

/// Recognizes glibc's loader by name: ld-linux-x86-64.so.2, ld-linux-aarch64.so.1, in any
/// directory.
fn is_glibc(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so") || name == b"ld.so" || name.starts_with(b"ld-2.")
}

/// Returns true if the kernel will set AT_SECURE: the file is set-user-ID or set-group-ID to
/// another user or group, or has file capabilities.
fn has_more_rights(meta: &Metadata, path: &Path) -> bool {
    const SET_UID: u32 = 0o4000;
    const SET_GID_AND_GROUP_RUNS: u32 = 0o2010;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let becomes_other = meta.mode() & SET_UID != 0 && meta.uid() != uid
        || meta.mode() & SET_GID_AND_GROUP_RUNS == SET_GID_AND_GROUP_RUNS && meta.gid() != gid;
    let gains = || rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64]).is_ok_and(|len| len > 0);
    becomes_other || uid != 0 && gains()
}

/// The relevant headers of an executable file.
#[derive(Debug)]
struct Elf {
    /// True for a program, false for a library that can be executed, such as the loader. A program
    /// has a fixed address or a flag.
    is_program: bool,
    loader: Option<PathBuf>,
    is_go: bool,
}

impl Elf {
    /// Returns `None` if it is not an ELF file or cannot be read, and `Some(None)` if it is for
    /// another machine.
    fn read(file: &File) -> Option<Option<Self>> {
        let data = &ReadCache::new(file);
        match FileKind::parse(data).ok()? {
            FileKind::Elf64 => {}
            FileKind::Elf32 => return Some(None),
            _ => return None,
        }
        let head = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = head.endian().ok()?;
        if head.e_machine(endian) != MACHINE {
            return Some(None);
        }
        let mut elf = Self { is_program: head.e_type(endian) != elf::ET_DYN, loader: None, is_go: false };
        for part in head.program_headers(endian, data).ok()? {
            if let Some(name) = part.interpreter(endian, data).ok()? {
                elf.loader = Some(OsString::from_vec(name.to_vec()).into());
            }
            if let Ok(Some(mut notes)) = part.notes(endian, data) {
                while let Ok(Some(note)) = notes.next() {
                    elf.is_go |= note.name() == b"Go" && note.n_type(endian) == GO_BUILD_ID;
                }
            }
            if let Ok(Some(entries)) = part.dynamic(endian, data) {
                let is_pie = |entry: &elf::Dyn64<Endianness>| {
                    entry.d_tag(endian) == elf::DT_FLAGS_1 && entry.d_val(endian) & u64::from(elf::DF_1_PIE) != 0
                };
                elf.is_program |= entries.iter().any(is_pie);
            }
        }
        Some(Some(elf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::elf::{ET_DYN as DYN, ET_EXEC as EXEC, PT_DYNAMIC, PT_INTERP, PT_NOTE};
    use std::os::unix::fs::PermissionsExt;

    /// A directory of one test, removed when dropped.
    struct Files(PathBuf);

    impl Files {
        fn new(test: &str) -> Self {
            let directory = std::env::temp_dir().join(format!("fastsock-program-{test}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            Self(directory)
        }

        fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Creates an ELF file with these parts: type and contents.
    fn elf(kind: u16, parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = vec![0; 64];
        out[..4].copy_from_slice(&elf::ELFMAG);
        (out[CLASS], out[5], out[6]) = (elf::ELFCLASS64, elf::ELFDATA2LSB, elf::EV_CURRENT);
        out[16..18].copy_from_slice(&kind.to_le_bytes());
        out[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        out[32..40].copy_from_slice(&64u64.to_le_bytes());
        out[54..56].copy_from_slice(&56u16.to_le_bytes());
        out[56..58].copy_from_slice(&(parts.len() as u16).to_le_bytes());
        let mut at = 64 + 56 * parts.len();
        for (kind, contents) in parts {
            let mut entry = [0; 56];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
            entry[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            entry[32..40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            out.extend(entry);
            at += contents.len();
        }
        parts.iter().for_each(|(_, contents)| out.extend(*contents));
        out
    }

    /// The byte `EI_CLASS` of a header.
    const CLASS: usize = 4;
    const LOADER: (u32, &[u8]) = (PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0");

    fn pie_mark() -> Vec<u8> {
        [elf::DT_FLAGS_1 as u64, elf::DF_1_PIE.into()].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn headers_are_understood() {
        let files = Files::new("headers");
        let mark = pie_mark();
        let (pie, plain) = ((PT_DYNAMIC, &mark[..]), (PT_DYNAMIC, &[0; 16][..]));
        let other_note: &[u8] = b"\x04\0\0\0\x04\0\0\0\x01\0\0\0GNU\0abcd";
        let go_note: &[u8] = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        let notes = [other_note, go_note].concat();
        let musl = PathBuf::from("/lib/ld-musl-x86_64.so.1");
        let cases: Vec<(&str, Vec<u8>, Option<Obstacle>)> = vec![
            ("dynamic", elf(DYN, &[LOADER, pie, (PT_NOTE, other_note)]), None),
            ("dynamic-fixed", elf(EXEC, &[LOADER, plain]), None),
            ("static", elf(EXEC, &[]), Some(Obstacle::Static)),
            ("static-pie", elf(DYN, &[pie]), Some(Obstacle::Static)),
            ("the-loader", elf(DYN, &[plain]), None),
            ("go", elf(EXEC, &[(PT_NOTE, go_note)]), Some(Obstacle::Go)),
            ("cgo", elf(DYN, &[LOADER, pie, (PT_NOTE, &notes)]), Some(Obstacle::Go)),
            ("musl", elf(DYN, &[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0"), pie]), Some(Obstacle::OtherLoader(musl))),
        ];
        for (name, contents, expected) in cases {
            let path = files.file(name, &contents);
            assert_eq!(obstacle(path.as_os_str()), expected.map(|it| (path.clone(), it)), "{name}");
            // Files that are truncated anywhere, or for another machine, do not panic.
            for cut in 0..contents.len() {
                let path = files.file("cut", &contents[..cut]);
                let _any = obstacle(path.as_os_str());
            }
            for (at, other) in [(CLASS, 1), (18, 3)] {
                let mut contents = contents.clone();
                contents[at] = other;
                let path = files.file("other", &contents);
                assert_eq!(obstacle(path.as_os_str()), Some((path.clone(), Obstacle::OtherMachine)), "{name}");
            }
        }
    }

    #[test]
    fn scripts_and_their_interpreters() {
        let files = Files::new("scripts");
        let program = files.file("program", &elf(EXEC, &[]));
        let shown = program.display();
        let env = format!("#!/usr/bin/env -S A=1 {shown} -x\n");
        let scripts = [format!("#!{shown}\nexit"), format!("#! {shown} -f\n"), env, format!("#!{shown}")];
        for script in scripts {
            let path = files.file("script", script.as_bytes());
            assert_eq!(obstacle(path.as_os_str()), Some((program.clone(), Obstacle::Static)), "{script}");
        }
        let round = files.file("round", b"");
        std::fs::write(&round, format!("#!{}\n", round.display())).unwrap();
        for path in [round, files.file("text", b"true\n"), files.file("empty", b""), "/no/such".into()] {
            assert_eq!(obstacle(path.as_os_str()), None, "{}", path.display());
        }
        for name in ["sh", "/bin/sh", "no-such-program-anywhere"] {
            assert_eq!(obstacle(OsStr::new(name)), None, "{name}");
        }
    }
}
