# One door: what CI calls and what people call is the same.

# list all recipes
default:
    @just --list

# every check and test
verify *args:
    cargo verify {{args}}

# a fleet under load, live
demo *args:
    cargo demo {{args}}

# one crate's tests, as in `just test controllers-apps`
test crate *args:
    cargo test -p {{crate}} {{args}}

# one suite on the real control plane, as in `just suite rollout`
suite name:
    cargo test -p tests -- --nocapture {{name}}

# what decoding and storing costs
bench:
    cargo bench -p bench

# format and lint
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
