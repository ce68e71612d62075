//! The targets of links in documents exist.

use super::files::Files;

/// Returns links of documents to files that do not exist.
pub(super) fn dead(files: &Files) -> Vec<String> {
    let mut broken = Vec::new();
    for (page, text) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#', ' ', '\n']).next().unwrap_or_default();
            if link.is_empty() || link.contains(':') {
                continue;
            }
            if !resolve(folder, link).is_some_and(|path| files.has(&path) || crate::run::root().join(&path).exists()) {
                broken.push(format!("{page}: links to {link}, which does not exist"));
            }
        }
    }
    broken
}

/// Resolves `link` of a document in `folder`, from the root. `None` if it leads out of the tree.
fn resolve(folder: &str, link: &str) -> Option<String> {
    let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                path.pop()?;
            }
            part => path.push(part),
        }
    }
    Some(path.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_dead_links() {
        let files = Files::of(&[
            ("README.md", "[a](docs/A.md#part) [site](https://a.b/c) [here](#there) [docs](docs/)"),
            ("docs/A.md", "[up](../README.md) [gone](GONE.md) [out](../../x)"),
        ]);
        assert_eq!(
            dead(&files),
            ["docs/A.md: links to GONE.md, which does not exist", "docs/A.md: links to ../../x, which does not exist"]
        );
    }
}
