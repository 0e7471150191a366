//! The list of all checks.

use super::{
    attention, bf16, conformance, device, dropout, fused, layer_norm, many_cells, multi_label, optimizers, peers, tiles,
};

/// A check of a device.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Module and function, as in `conformance::gather`.
    pub name: &'static str,
    /// Whether it checks the device under test. The other checks are of functions of the CPU device alone.
    pub on_gpu: bool,
    pub(crate) run: fn(),
}

/// Hands the list of all checks to a macro, by module: those of any device, then those of the CPU device alone.
#[macro_export]
macro_rules! for_each_check {
    ($macro:ident) => {
        $macro! {
            attention {
                any: attention_is_the_reference windows_of_attention_are_the_whole_bit_for_bit
                    attention_with_a_halo_has_the_same_bits attention_over_bf16_is_that_over_f32_rounded
                    row_steps_after_attention_have_the_bits_of_separate_calls
                    attention_that_does_not_fit_is_an_error_and_no_panic
                    rows_of_attention_are_the_reference_in_both_storage_types rows_of_attention_that_do_not_fit_are_errors;
                cpu: ;
            }
            bf16 {
                any: gathers_in_bf16_are_those_in_f32_rounded_once gathers_of_any_width_read_bf16_as_they_read_f32
                    gather_windows_in_bf16_are_the_whole_gather_bit_for_bit products_in_bf16_sum_in_f32
                    cells_rows_and_columns_in_bf16_are_those_in_f32_rounded_once
                    losses_and_metrics_of_logits_in_bf16 matrices_that_are_not_stored_alike_are_an_error;
                cpu: numbers_are_rounded_to_the_nearest_and_of_two_to_the_even_one products_by_pairs_of_bf16_sum_in_f32
                    products_by_pairs_of_bf16_are_the_same_on_any_threads_and_go_on_where_others_ended
                    products_by_pairs_of_bf16_keep_what_is_no_number;
            }
            conformance {
                any: gather a_gather_has_the_same_bits_on_every_device
                    a_gather_by_some_columns_at_a_time_has_the_same_bits linear_and_its_gradients
                    products_in_3xtf32_are_almost_those_in_f32 a_gather_names_a_source_that_does_not_exist
                    a_product_in_strips_of_columns_has_the_bits_of_one_product a_parameter_is_cut_into_slices_and_joined
                    a_matrix_is_cut_into_strips_of_columns_and_joined packed_rows_are_those_that_were_named
                    cells_rows_and_columns not_a_number_is_not_hidden_by_relu edge_values losses_and_metrics;
                cpu: the_comparer_objects_to_one_wrong_cell same_bits_objects_to_one_flipped_bit
                    ties_go_to_the_first_column_and_nan_never_wins softmax_of_extreme_logits
                    the_product_of_the_sums_of_many_rows_does_not_overflow
                    a_row_of_nan_spoils_no_gradient_but_its_own;
            }
            device {
                any: capacity_is_refused_at_the_exact_byte used_and_peak_are_counted
                    the_allocation_that_fails_leaves_no_trace copies_need_the_exact_size a_constant_is_never_written
                    a_constant_that_is_not_aligned_is_copied
                    a_slot_that_is_read_and_written_is_an_error_and_no_deadlock
                    freed_memory_is_used_again_and_never_read
                    shapes_that_do_not_agree_are_refused_and_the_output_is_untouched
                    slots_that_are_too_small_or_empty_are_refused a_permutation_that_points_outside_is_refused
                    a_batch_of_many_sizes_stays_within_the_capacity;
                cpu: memory_that_the_host_does_not_have_is_an_error the_device_may_use_the_global_pool
                    bytes_are_zero_aligned_and_whole_at_every_size a_slot_is_renamed_and_shared_without_a_copy;
            }
            dropout {
                any: a_rate_of_0_is_the_identity kept_cells_are_scaled_in_f32 a_part_drops_the_cells_that_the_whole_does
                    a_strip_of_columns_drops_the_cells_that_the_whole_does
                    a_sparse_matrix_drops_the_cells_that_the_dense_one_does rates_that_make_no_sense_are_refused;
                cpu: the_share_of_kept_cells_is_binomial
                    neighbouring_rows_columns_epochs_ops_and_seeds_are_independent;
            }
            fused {
                any: steps_behind_a_gather steps_behind_products steps_behind_steps a_wrong_chain_shows
                    what_does_not_fit_is_refused_and_writes_nothing;
                cpu: a_fused_call_names_all_its_slots;
            }
            layer_norm {
                any: layer_norm_and_its_gradients an_eps_below_0_is_refused;
                cpu: rows_have_mean_0_and_variance_1_wherever_they_lay a_constant_row_becomes_the_bias
                    not_a_number_stays_in_its_row;
            }
            many_cells {
                any: every_row_of_a_matrix_is_read_and_written;
                cpu: ;
            }
            multi_label {
                any: losses_and_counts half_the_sum_of_squares rows_of_every_rest_of_a_vector_have_the_reference_loss;
                cpu: a_logit_of_0_costs_ln_2 infinite_logits_cost_nothing_or_everything the_gradient_of_extreme_logits
                    counts_by_hand targets_of_another_shape_are_refused;
            }
            optimizers {
                any: adam sgd adam_first_step_moves_by_the_rate an_update_in_windows_is_the_update
                    a_window_outside_the_parameter_is_refused;
                cpu: ;
            }
            peers {
                any: fetched_rows_are_those_that_were_named rows_of_two_bytes_a_number_are_fetched_as_they_are
                    what_cannot_be_fetched_is_an_error what_is_being_read_outlives_its_owner;
                cpu: ;
            }
            tiles {
                any: windows_one_after_the_other_are_the_whole_gather_bit_for_bit
                    windows_find_their_edges_in_rows_of_all_lengths
                    a_window_that_does_not_go_with_its_block_is_an_error sums_over_rows_go_on_from_other_rows
                    counts_go_on_from_other_rows only_a_sum_can_be_added_to;
                cpu: ;
            }
        }
    };
}

macro_rules! table {
    ($($module:ident { any: $($any:ident)*; cpu: $($cpu:ident)*; })*) => {
        /// All checks, by module.
        pub const CHECKS: &[Check] = &[$(
            $(Check { name: concat!(stringify!($module), "::", stringify!($any)), on_gpu: true, run: $module::$any },)*
            $(Check { name: concat!(stringify!($module), "::", stringify!($cpu)), on_gpu: false, run: $module::$cpu },)*
        )*];
    };
}

for_each_check!(table);

/// Runs the check of this name.
///
/// # Panics
/// If the check fails, or if there is none of this name.
pub fn check(name: &str) {
    let check = CHECKS.iter().find(|check| check.name == name);
    (check.unwrap_or_else(|| panic!("there is no check {name}")).run)();
}
