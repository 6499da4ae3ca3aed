//! The stories beside the code that is to play them.

use std::path::PathBuf;

use crate::stories::ALL;

/// Lines of a story: more, and nobody reads it.
const LINES_MAX: usize = 80;

fn folder() -> PathBuf {
    // Not where it was built: a cache of builds may come from another folder.
    harness::workspace_root().join("tests/simulation/stories")
}

/// How a text differs from another: the lines that are alike at both ends left out.
fn difference(kept: &str, played: &str) -> String {
    let (kept, played): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), played.lines().collect());
    // The longest common subsequence, from each pair of places on: stories are short.
    let mut common = vec![vec![0_usize; played.len() + 1]; kept.len() + 1];
    for one in (0..kept.len()).rev() {
        for other in (0..played.len()).rev() {
            common[one][other] = if kept[one] == played[other] {
                common[one + 1][other + 1] + 1
            } else {
                common[one + 1][other].max(common[one][other + 1])
            };
        }
    }
    let (mut one, mut other) = (0, 0);
    let mut text = String::new();
    while one < kept.len() || other < played.len() {
        if one < kept.len() && other < played.len() && kept[one] == played[other] {
            (one, other) = (one + 1, other + 1);
        } else if other == played.len()
            || (one < kept.len() && common[one + 1][other] >= common[one][other + 1])
        {
            text.push_str(&format!("- {}\n", kept[one]));
            one += 1;
        } else {
            text.push_str(&format!("+ {}\n", played[other]));
            other += 1;
        }
    }
    text
}

#[test]
fn the_stories_are_played_as_they_are_kept() {
    let renews = std::env::var_os("UPDATE_GENERATED").is_some();
    let mut stale = String::new();
    for story in ALL {
        let played = story.play();
        assert_eq!(played, story.play(), "{}: two plays, two texts", story.name);
        let lines = played.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{} has {lines} lines:\n{played}",
            story.name
        );
        let path = folder().join(format!("{}.txt", story.name));
        if renews {
            std::fs::write(&path, &played).expect("written");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        if kept != played {
            stale.push_str(&format!(
                "{}.txt:\n{}\n",
                story.name,
                difference(&kept, &played)
            ));
        }
    }
    assert!(
        stale.is_empty(),
        "{stale}\nIf that is right: UPDATE_GENERATED=1 cargo test -p simulation stories, and review the diff"
    );
}

#[test]
fn every_kept_story_is_played() {
    let kept = std::fs::read_dir(folder()).expect("the folder of stories");
    for file in kept {
        let name = file
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("a plain name");
        let Some(name) = name.strip_suffix(".txt") else {
            continue;
        };
        assert!(
            ALL.iter().any(|story| story.name == name),
            "nobody plays {name}.txt"
        );
    }
}

#[test]
fn a_difference_shows_what_has_gone_and_what_has_come() {
    assert_eq!(difference("a\nb\nc\n", "a\nc\nd\n"), "- b\n+ d\n");
    assert_eq!(difference("a\n", "a\n"), "");
}
