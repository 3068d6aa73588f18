//! The hash against values that arbitrary-precision arithmetic gives for its definition.

use rtit_truth::hash::{combine_hashes, extend_hash, mix_address, power_of_k, K};
use rtit_truth::{PathHash, PathRun, RunHash};

#[test]
fn mix_address_has_the_computed_values() {
    assert_eq!(mix_address(0), 0);
    assert_eq!(mix_address(1), 0xbf58_476d_a3bc_a2d4);
    assert_eq!(mix_address(0x40_1000), 0x5fbe_0b07_e325_9b07);
    assert_eq!(mix_address(0x7fff_dead_beef), 0xa02f_2fa6_3b6a_15ef);
    assert_eq!(mix_address(u64::MAX), 0x18d8_d238_18d8_d238);
}

#[test]
fn power_of_k_has_the_computed_values() {
    assert_eq!(power_of_k(0), 1);
    assert_eq!(power_of_k(1), K);
    assert_eq!(power_of_k(3), 0x604a_5ce3_adde_f82d);
    assert_eq!(power_of_k(255), 0x7a0e_41f7_95e6_0f3d);
    assert_eq!(power_of_k(256), 0xcc9d_a40f_65e2_cc01);
    assert_eq!(power_of_k(1_000_003), 0xb9bd_fc56_2bfd_a72d);
}

#[test]
fn hash_of_three_instructions_has_the_computed_value() {
    let mut run = RunHash::default();
    for ip in [0x40_1000, 0x40_1003, 0x40_1008] {
        run.push_instruction(ip);
    }
    assert_eq!(
        run,
        RunHash {
            instructions: 3,
            hash: 0xa5dc_1d6c_366f_0afb
        }
    );
}

#[test]
fn path_hash_does_not_depend_on_how_runs_are_cut() {
    let path: Vec<u64> = (0..700u64).map(|i| 0x40_0000 + i * i * 3).collect();
    let whole = path.iter().fold(0, |hash, &ip| extend_hash(hash, ip));
    for cut in [1, 2, 7, 255, 256, 300, 699] {
        let mut chain = PathHash::default();
        for piece in path.chunks(cut) {
            let hash = piece.iter().fold(0, |hash, &ip| extend_hash(hash, ip));
            chain.push_run(&PathRun {
                start: piece[0],
                instructions: piece.len() as u32,
                hash,
            });
        }
        assert_eq!(
            chain,
            PathHash {
                instructions: 700,
                hash: whole
            }
        );
    }
    let (left, right) = path.split_at(123);
    let hash = |ips: &[u64]| ips.iter().fold(0, |hash, &ip| extend_hash(hash, ip));
    assert_eq!(
        combine_hashes(hash(left), right.len() as u64, hash(right)),
        whole
    );
}
