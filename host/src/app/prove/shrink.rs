//! Finds the smallest set of messages with which something still fails: delta debugging (Zeller and Hildebrandt, 2002), within a bound.

/// Returns a smaller part of `all` for which `fails` is still true, and true if it can't be made smaller by leaving out any one.
///
/// Asks at most `asks_max` times; the order of what is left stays.
///
/// # Errors
/// Those of `fails`.
pub(super) async fn smallest<E>(
    all: Vec<usize>,
    asks_max: usize,
    mut fails: impl AsyncFnMut(Vec<usize>) -> Result<bool, E>,
) -> Result<(Vec<usize>, bool), E> {
    let mut left = all;
    let mut parts = 2;
    let mut asks = 0;
    while left.len() > 1 {
        let size = left.len().div_ceil(parts);
        let chunks: Vec<Vec<usize>> = left.chunks(size).map(<[usize]>::to_vec).collect();
        let mut smaller = None;
        let without = |number: usize| -> Vec<usize> {
            let others = chunks
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != number);
            others.flat_map(|(_, chunk)| chunk.clone()).collect()
        };
        // A part alone is smaller than all but a part; of two parts these are the same.
        let alone = chunks.iter().cloned().map(|chunk| (chunk, 2));
        let all_but = (0..chunks.len())
            .filter(|_| chunks.len() > 2)
            .map(|number| (without(number), (parts - 1).max(2)));
        for (candidate, parts) in alone.chain(all_but) {
            if asks == asks_max {
                return Ok((left, false));
            }
            asks += 1;
            if fails(candidate.clone()).await? {
                smaller = Some((candidate, parts));
                break;
            }
        }
        match smaller {
            Some((candidate, next)) => (left, parts) = (candidate, next),
            None if size == 1 => return Ok((left, true)),
            None => parts = (parts * 2).min(left.len()),
        }
    }
    Ok((left, true))
}

#[cfg(test)]
mod tests {
    use super::smallest;

    async fn of(all: usize, asks_max: usize, wanted: &[usize]) -> (Vec<usize>, bool) {
        let found: Result<_, ()> = smallest((0..all).collect(), asks_max, async |part| {
            Ok(wanted.iter().all(|one| part.contains(one)))
        })
        .await;
        found.unwrap()
    }

    #[tokio::test]
    async fn what_is_needed_stays() {
        for wanted in [&[3][..], &[0, 49], &[7, 8, 31], &[0, 1, 2, 3, 4]] {
            assert_eq!(of(50, 1_000, wanted).await, (wanted.to_vec(), true));
        }
        assert_eq!(of(1, 1_000, &[0]).await, (vec![0], true));
    }

    #[tokio::test]
    async fn it_ends_at_its_bound() {
        let (left, is_smallest) = of(1_000, 5, &[0, 500, 999]).await;
        assert!(!is_smallest);
        assert!([0, 500, 999].iter().all(|one| left.contains(one)));
    }
}
