"""Every flag of every command, and every optional argument of the public functions, has a test that sees its effect.

`SEEN` names the test: one that would fail if the flag were parsed and then ignored. That a bad value is refused, or that
the value arrives in a config, is not an effect. What this file can check is that no flag is missing, and that the test is there
and passes the flag; that it sees the effect is for whoever adds the line, and for the review.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import pathlib
import re
import typing

import pytest

import pipeline

TESTS = pathlib.Path(__file__).parents[1]
CONFIGS = {
    "beam_jobs.convert": "beam_jobs.config:ConvertConfig",
    "beam_jobs.edit": "beam_jobs.conversion.editing:EditConfig",
    "beam_jobs.validate": "beam_jobs.validation.command:ValidateConfig",
    "trainer.run": "trainer.config:TrainConfig",
    "trainer.launch": "trainer.launching.flags:launch_flags",
    "trainer.replay": "trainer.replay:ReplayConfig",
    "trainer.evaluate": "trainer.config.trained:EvaluateConfig",
    "trainer.export": "trainer.config.trained:ExportConfig",
    "trainer.predict": "trainer.config.trained:PredictConfig",
    "trainer.watch": "trainer.watch:WatchConfig",
    "pipeline.inspect": "pipeline.inspect.__main__:InspectConfig",
    "pipeline.index": "pipeline.index.__main__:IndexConfig",
    "pipeline.audit": "pipeline.audit.__main__:AuditConfig",
    "pipeline.bench": "pipeline.bench.__main__:BenchConfig",
}
PASSED_ON = ("StepIterator", "augment_fn", "distribute", "order_spec")  # functions of the options of input_fn
BESIDES = {"trainer.run": ("config", "dump_config")}  # flags that are read before the config is made

# {command or public function: {flag or argument: test}}; tests are below tests/.
SEEN: dict[str, dict[str, str]] = {
    "beam_jobs.convert": {
        "dataset": "unit/beam_jobs/sources/test_tfds.py::test_the_command_converts_it",
        "data_dir": "unit/beam_jobs/test_convert.py::test_images_are_stored_as_the_flags_say",
        "source": "integration/test_convert_parquet.py::test_every_row_becomes_one_example_with_its_columns",
        "image_column": "unit/beam_jobs/test_convert.py::test_a_source_is_read_as_the_flags_say",
        "label_column": "integration/test_convert_parquet.py::test_every_row_becomes_one_example_with_its_columns",
        "key_column": "integration/test_convert_parquet.py::test_every_row_becomes_one_example_with_its_columns",
        "split_column": "unit/beam_jobs/sources/test_image_table.py::test_splits_are_those_of_the_column_or_of_the_names_of_tables",
        "na_is_class": "unit/beam_jobs/sources/test_image_table.py::test_missing_labels_are_invalid_rows_in_every_format",
        "label_separator": "unit/beam_jobs/sources/test_labels.py::test_a_text_is_divided_at_the_separator",
        "float_labels": "unit/beam_jobs/sources/test_labels.py::test_numbers_to_predict_are_float32",
        "delimiter": "unit/beam_jobs/sources/test_image_table.py::test_the_delimiter_may_be_given",
        "splits": "unit/beam_jobs/sources/test_splits.py::test_splits_of_any_source_may_be_left_out",
        "append": "unit/beam_jobs/conversion/test_appending.py::test_what_existed_is_untouched_and_the_new_version_is_that_of_all_rows",
        "boxes_column": "unit/beam_jobs/sources/test_placed_columns.py::test_columns_and_fields_of_parquet_are_boxes",
        "box_format": "unit/beam_jobs/sources/test_placed_columns.py::test_boxes_of_each_format_are_the_same_after_a_resize",
        "box_labels_column": "unit/beam_jobs/sources/test_placed_columns.py::test_columns_and_fields_of_parquet_are_boxes",
        "points_column": "unit/beam_jobs/sources/test_placed_columns.py::test_a_converted_data_set_can_be_converted_again",
        "point_format": "unit/beam_jobs/sources/test_placed_columns.py::test_a_converted_data_set_can_be_converted_again",
        "mask_column": "unit/beam_jobs/sources/test_placed_columns.py::test_a_table_names_images_and_masks_and_has_boxes",
        "mask_dir": "unit/beam_jobs/sources/test_placed_columns.py::test_a_table_names_images_and_masks_and_has_boxes",
        "mask_fill": "unit/beam_jobs/sources/test_voc.py::test_masks_are_the_indices_of_their_palettes",
        "image_set": "unit/beam_jobs/sources/test_voc.py::test_masks_are_the_indices_of_their_palettes",
        "image_dir": "unit/beam_jobs/test_convert.py::test_a_source_is_read_as_the_flags_say",
        "keep_columns": "integration/test_convert_parquet.py::test_every_row_becomes_one_example_with_its_columns",
        "default": "unit/beam_jobs/sources/test_defaults.py::test_nulls_become_the_default_and_other_values_stay",
        "feature_map": "unit/beam_jobs/test_convert.py::test_a_source_is_read_as_the_flags_say",
        "image_shape": "unit/beam_jobs/test_convert.py::test_a_source_is_read_as_the_flags_say",
        "follow_links": "unit/beam_jobs/test_convert.py::test_a_source_is_read_as_the_flags_say",
        "image_encoding": "unit/beam_jobs/test_convert.py::test_images_are_stored_as_the_flags_say",
        "resize": "unit/beam_jobs/test_convert.py::test_images_are_stored_as_the_flags_say",
        "scaled_decoding": "unit/beam_jobs/test_convert.py::test_large_jpegs_may_be_decoded_at_a_part_of_their_size",
        "channels": "unit/beam_jobs/test_convert.py::test_images_are_stored_as_the_flags_say",
        "compression": "unit/beam_jobs/shards/test_writer.py::test_a_compressed_shard_is_the_same_records",
        "split": "unit/beam_jobs/test_convert.py::test_the_seed_and_the_split_are_those_of_the_flags",
        "folds": "unit/beam_jobs/sources/test_dealt.py::test_folds_are_splits_of_equal_shares_of_every_group_and_are_told_before_they_are_written",
        "group_by": "unit/beam_jobs/sources/test_dealt.py::test_folds_are_splits_of_equal_shares_of_every_group_and_are_told_before_they_are_written",
        "stratify": "unit/beam_jobs/sources/test_dealt.py::test_folds_are_splits_of_equal_shares_of_every_group_and_are_told_before_they_are_written",
        "num_shards": "unit/beam_jobs/test_convert.py::test_rejects_are_bounded_and_the_work_is_kept_for_a_larger_bound",
        "max_shard_bytes": (
            "integration/test_convert_images.py::"
            "test_rows_are_read_in_parts_where_the_source_is_larger_than_a_shard_may_be"
        ),
        "passes": "unit/beam_jobs/test_convert.py::test_two_passes_shuffle_rows_of_chunks_and_lose_nothing",
        "max_rejects": (
            "unit/beam_jobs/test_convert.py::test_rejects_are_bounded_and_the_work_is_kept_for_a_larger_bound"
        ),
        "transform": "unit/beam_jobs/sources/test_transformed.py::test_rows_are_dropped_made_and_joined_with_columns_and_classes_follow",
        "seed": "unit/beam_jobs/test_convert.py::test_the_seed_and_the_split_are_those_of_the_flags",
        "dry_run": "unit/beam_jobs/conversion/test_dry_run.py::test_what_is_said_is_what_the_conversion_does",
        "overwrite": "integration/test_card.py::test_a_data_set_that_is_replaced_gets_a_new_one",
        "columns": "unit/beam_jobs/test_convert.py::test_columns_are_made_with_the_shards_and_go_with_the_data_set",
    },
    "beam_jobs.edit": {
        "data_dir": "unit/beam_jobs/conversion/test_editing.py::test_labels_are_set_and_other_shards_stay",
        "set_labels": "unit/beam_jobs/conversion/test_editing.py::test_labels_are_set_and_other_shards_stay",
        "delete": "unit/beam_jobs/conversion/test_editing.py::test_a_deleted_record_is_in_no_file_and_its_versions_are_refused",
        "dry_run": "unit/beam_jobs/conversion/test_editing.py::test_a_deleted_record_is_in_no_file_and_its_versions_are_refused",
    },
    "beam_jobs.validate": {
        "data_dir": "integration/test_validate.py::test_the_report_is_json",
        "deep": "integration/test_validate.py::test_raw_pixels_are_summed_by_deep",
        "card": "integration/test_in_place.py::test_a_run_is_evaluated_exported_and_predicts",
        "report": "integration/test_validate.py::test_the_report_is_json",
        "fail_on": "unit/beam_jobs/validation/test_findings.py::test_planted_leaks_are_found_named_and_fail_the_command_if_asked",
        "compare": "unit/beam_jobs/validation/test_drift.py::test_what_has_drifted_is_said_with_figures_and_fails_the_command_if_asked",
        "most_drift": "unit/beam_jobs/validation/test_drift.py::test_what_has_drifted_is_said_with_figures_and_fails_the_command_if_asked",
        "near": "unit/beam_jobs/validation/test_findings.py::test_nearly_equal_images_are_found_and_equal_ones_are_no_such_pair",
    },
    "trainer.run": {
        "classes": "integration/test_views.py::test_a_run_of_some_classes_has_a_head_for_them_and_predicts_their_names",
        "data_dir": "integration/test_mixtures.py::test_a_run_reports_each_source_and_all_together",
        "train_split": "integration/test_train.py::test_slices_of_splits",
        "eval_split": "integration/test_train.py::test_slices_of_splits",
        "eval_data_dir": "integration/test_evaluate.py::test_another_data_set_is_evaluated_on_by_the_run_and_after_it",
        "resize": "unit/trainer/test_training.py::test_another_size_is_another_model",
        "augment": "integration/test_train.py::test_augmented_images_train_to_other_weights",
        "augment_on": "integration/test_train.py::test_what_the_replicas_are_fed",
        "eval_copies": "unit/trainer/test_eval_copies.py::test_a_run_takes_the_mean_over_copies_and_so_do_its_evaluations",
        "on_corrupt": "integration/test_corruption.py::test_the_trainer_skips_says_so_and_keeps_to_the_budget",
        "max_corrupt": "integration/test_corruption.py::test_the_trainer_skips_says_so_and_keeps_to_the_budget",
        "cache_dir": "integration/test_cache.py::test_trainer_and_evaluation_use_one_cache",
        "cache_bytes": "integration/test_cache.py::test_trainer_and_evaluation_use_one_cache",
        "model_dir": "integration/test_train.py::test_what_is_trained_already_is_evaluated",
        "fresh": "integration/test_fresh.py::test_the_folder_alone_begins_anew_with_the_flags_of_its_run",
        "strategy": "integration/test_train.py::test_two_replicas_learn_the_digits",
        "num_replicas": "integration/test_train.py::test_two_replicas_learn_the_digits",
        "all_reduce": "unit/trainer/cluster/test_strategies.py::test_the_way_to_sum_is_that_of_the_flag_and_gives_the_sum",
        "join_timeout": "integration/test_faults.py::test_a_worker_that_never_comes",
        "collective_timeout": "integration/test_faults.py::test_a_worker_that_dies_while_joining",
        "deterministic": (
            "integration/test_train.py::test_an_error_in_a_step_of_two_replicas_is_the_line_that_says_it"
        ),
        "log_keys": "integration/test_row_logs.py::test_the_keys_are_the_order_and_training_is_the_same_with_them",
        "log_losses": "integration/test_row_logs.py::test_each_row_has_its_loss_and_training_is_the_same_with_it",
        "model": "integration/test_train.py::test_an_error_in_a_step_of_two_replicas_is_the_line_that_says_it",
        "task": "integration/test_evaluate.py::test_a_task_without_classes_has_its_metrics_alone",
        "initialize_from": "unit/trainer/test_task.py::test_a_new_run_begins_with_them_and_so_does_the_average",
        "dropout": "unit/trainer/models/test_models.py::test_dropout_is_that_of_the_flag",
        "label_smoothing": "unit/trainer/test_task.py::test_label_smoothing_is_that_of_keras",
        "class_weight": "integration/test_class_weight.py::test_the_trainer_weighs_losses_and_nothing_else",
        "eval_flip": "integration/test_evaluate.py::test_mirrored_images_count_in_evaluations",
        "precision": "unit/trainer/step/test_train_step.py::test_less_precision_comes_to_about_the_same",
        "jit_compile": "unit/trainer/step/test_train_step.py::test_xla_compiles_the_step_where_that_is_asked_for",
        "optimizer": "unit/trainer/step/test_optimizers.py::test_variables_of_an_optimizer",
        "learning_rate": "unit/trainer/step/test_state.py::test_stairs_of_resnet",
        "momentum": "unit/trainer/step/test_optimizers.py::test_variables_of_an_optimizer",
        "schedule": "unit/trainer/step/test_state.py::test_schedules_that_end_with_the_training",
        "decay_factor": "unit/trainer/step/test_state.py::test_staircase_of_the_cifar10_tutorial",
        "decay_epochs": "unit/trainer/step/test_state.py::test_staircase_of_the_cifar10_tutorial",
        "decay_staircase": "unit/trainer/step/test_state.py::test_the_smooth_decay_of_the_mnist_book",
        "decay_at": "unit/trainer/step/test_state.py::test_stairs_of_resnet",
        "end_factor": "unit/trainer/step/test_state.py::test_schedules_that_end_with_the_training",
        "warmup_epochs": "unit/trainer/step/test_state.py::test_a_warm_up_precedes_any_schedule",
        "weight_decay": "unit/trainer/step/test_optimizers.py::test_adamw_decays_by_the_flag_alone",
        "clip_norm": "unit/trainer/step/test_train_step.py::test_the_norm_of_all_gradients_is_clipped_after_they_are_summed",
        "ema": "unit/trainer/step/test_train_step.py::test_the_average_of_the_weights_has_the_classic_warm_up",
        "phases": "integration/test_phases.py::test_what_is_frozen_stays_to_the_bit",
        "global_batch_size": "unit/trainer/test_plan.py::test_numbers",
        "virtual_replicas": (
            "unit/trainer/step/test_virtual_replicas.py::"
            "test_dropout_and_batch_norm_follow_the_virtual_replicas_and_the_seed"
        ),
        "cpu_threads": "integration/test_train.py::test_operations_of_virtual_replicas_have_so_many_threads",
        "seed": "unit/trainer/step/test_state.py::test_the_seed_gives_the_weights_of_any_task",
        "streams": "unit/trainer/test_plan.py::test_workers_that_share_streams_are_told_what_it_costs",
        "shuffle_bytes": "unit/trainer/test_plan.py::test_a_split_that_is_not_shuffled_as_one_has_many_streams",
        "remainder": "unit/trainer/test_plan.py::test_numbers",
        "prefetch": "integration/test_train.py::test_what_the_replicas_are_fed",
        "allow_order_change": "integration/test_train.py::test_another_order_is_refused_and_can_be_allowed",
        "allow_model_change": "unit/trainer/checkpoint/test_manager.py::test_another_model_can_be_allowed_and_is_then_stored",
        "train_steps": "integration/test_train.py::test_what_is_trained_already_is_evaluated",
        "epochs": "integration/test_train.py::test_what_is_trained_already_is_evaluated",
        "steps_per_loop": "integration/test_train.py::test_by_the_clock_scalars_are_written_and_checkpoints_saved",
        "log_every": "integration/test_train.py::test_two_replicas_learn_the_digits",
        "log_epochs": "integration/test_train.py::test_a_line_per_epoch_is_that_of_an_undisturbed_run_after_a_resume_in_its_middle",
        "summary_every": "integration/test_train.py::test_scalars_have_their_own_steps_and_each_split_its_tags",
        "eval_every": "integration/test_train.py::test_scalars_have_their_own_steps_and_each_split_its_tags",
        "checkpoint_every": "integration/test_train.py::test_besides_the_newest_checkpoints_older_ones_are_kept",
        "summary_secs": "integration/test_train.py::test_by_the_clock_scalars_are_written_and_checkpoints_saved",
        "checkpoint_secs": "integration/test_train.py::test_by_the_clock_scalars_are_written_and_checkpoints_saved",
        "max_to_keep": "integration/test_train.py::test_besides_the_newest_checkpoints_older_ones_are_kept",
        "keep_best": "integration/test_best.py::test_a_run_that_ends_early_keeps_its_best",
        "early_stopping": "integration/test_best.py::test_a_run_that_ends_early_keeps_its_best",
        "best_metric": "unit/trainer/checkpoint/test_best.py::test_the_best_is_that_of_the_metric_and_the_mode",
        "best_mode": "unit/trainer/checkpoint/test_best.py::test_the_best_is_that_of_the_metric_and_the_mode",
        "histogram_every": "integration/test_train.py::test_histograms_pictures_a_profile_and_where_operations_run",
        "activation_every": "integration/test_train.py::test_histograms_pictures_a_profile_and_where_operations_run",
        "image_every": "integration/test_train.py::test_histograms_pictures_a_profile_and_where_operations_run",
        "profile": "integration/test_train.py::test_histograms_pictures_a_profile_and_where_operations_run",
        "metrics_jsonl": "integration/test_best.py::test_run_again_it_stays_as_it_is",
        "headspace": "integration/test_verdict.py::test_the_bound_is_found",
        "log_time": "integration/test_train.py::test_the_time_of_each_line_without_evaluations",
        "log_device_placement": "integration/test_train.py::test_histograms_pictures_a_profile_and_where_operations_run",
        "worker_hosts": "unit/trainer/cluster/test_tf_config.py::test_workers_are_numbered_as_they_are_listed",
        "ps_hosts": "integration/test_parameter_server.py::test_linear_regression_in_three_terminals",
        "chief_host": "unit/trainer/parameter_server/test_roles.py::test_a_chief_of_its_own",
        "job_name": "unit/trainer/parameter_server/test_roles.py::test_other_workers",
        "task_index": "unit/trainer/cluster/test_tf_config.py::test_workers_are_numbered_as_they_are_listed",
        "sync": "integration/test_parameter_server.py::test_synchronous_every_row_of_every_epoch_once",
        "replicas_to_aggregate": "integration/test_parameter_server.py::test_synchronous_every_row_of_every_epoch_once",
        "max_staleness": "integration/test_parameter_server.py::test_gradients_of_older_weights_count_where_they_may",
        "config": "unit/trainer/config/test_file.py::test_numbers",
        "dump_config": "unit/trainer/config/test_file.py::test_what_is_dumped_is_the_same_config",
        "where": "integration/test_views.py::test_an_epoch_has_the_steps_of_its_view",
        "limit": "integration/test_views.py::test_an_epoch_has_the_steps_of_its_view",
        "weigh": "integration/test_views.py::test_an_epoch_has_the_steps_of_its_view",
        "balance": "integration/test_views.py::test_a_run_sees_just_what_its_view_says",
        "eval_where": "integration/test_views.py::test_a_run_sees_just_what_its_view_says",
        "eval_limit": "integration/test_views.py::test_a_run_sees_just_what_its_view_says",
        "skip_steps": "integration/test_views.py::test_a_skipped_step_changes_nothing_but_its_number",
        "mixture_schedule": "integration/test_mixtures.py::test_a_schedule_may_change_ahead_and_resumes_with_the_same_bits",
    },
    "trainer.launch": {
        "num_workers": "integration/test_launch.py::test_two_workers_to_the_end",
        "num_ps": "integration/test_launch.py::test_a_dead_parameter_server_restarts_the_group",
        "gpus_per_worker": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "page": "integration/test_launch.py::test_a_page_that_cannot_be_served_is_one_line_and_the_job_goes_on",
        "target": "unit/docs/test_launching.py::test_the_batch_script_has_what_the_line_asks_for",
        "max_restarts": "unit/trainer/launching/local/test_supervisor.py::test_restarts_without_a_new_checkpoint_are_counted",
        "restart_delay": "integration/test_launch.py::test_a_later_failure_at_start_up_is",
        "silent_timeout": "integration/test_launch.py::test_a_silent_worker_is_named_and_killed",
        "stop_timeout": (
            "unit/trainer/launching/local/test_supervisor.py::test_who_does_not_end_in_time_is_killed_by_name"
        ),
        "regrow_delay": "integration/test_launch.py::test_elastic_goes_on_with_fewer_and_grows_back",
        "elastic": "integration/test_launch.py::test_elastic_goes_on_with_fewer_and_grows_back",
        "name": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "cpus": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "memory": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "port": "unit/trainer/launching/schedulers/test_slurm.py::test_tasks_of_one_node_have_ports_of_their_own",
        "kind": "unit/docs/test_launching.py::test_the_other_kind_is_named",
        "image": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "namespace": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "volume": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "time_limit": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "tasks_per_node": "unit/trainer/launching/schedulers/test_slurm.py::test_tasks_of_one_node_have_ports_of_their_own",
        "partition": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "account": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "sbatch": "unit/trainer/launching/schedulers/test_slurm.py::test_script",
        "env": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "secret_env": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "service_account": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "node_selector": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "toleration": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "priority_class": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "pull_secret": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "run_as": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "ttl": "unit/trainer/launching/schedulers/test_kubernetes.py::test_manifests",
        "setup": "unit/trainer/launching/schedulers/test_slurm.py::test_a_setup_that_fails_is_final",
    },
    "trainer.watch": {
        "runs": "unit/trainer/test_watch.py::test_json_is_printed_once",
        "host": "unit/trainer/test_watch.py::test_other_machines_need_the_token_that_is_printed",
        "port": "unit/trainer/test_watch.py::test_the_page_is_for_this_machine_alone",
        "json": "unit/trainer/test_watch.py::test_json_is_printed_once",
    },
    "trainer.replay": {
        "model_dir": "integration/test_replay.py::test_the_rows_that_spoil_a_step_are_named",
        "step": "integration/test_replay.py::test_any_step_has_the_losses_that_the_run_has_logged",
        "verify": "integration/test_replay.py::test_a_flipped_bit_is_found",
        "from_start": "integration/test_replay.py::test_any_step_has_the_losses_that_the_run_has_logged",
        "context": "integration/test_replay.py::test_the_rows_that_spoil_a_step_are_named",
        "rows": "integration/test_replay.py::test_the_table_of_a_step",
        "data_dir": "integration/test_replay.py::test_flags_of_the_run_that_changed_and_data_that_moved",
        "strategy": "integration/test_replay.py::test_a_run_that_was_killed_and_resumed_on_other_replicas_agrees",
        "num_replicas": "integration/test_replay.py::test_a_run_that_was_killed_and_resumed_on_other_replicas_agrees",
        "png": "integration/test_replay.py::test_the_rows_that_spoil_a_step_are_named",
        "json": "integration/test_replay.py::test_the_bits_of_a_run_agree",
    },
    "trainer.evaluate": {
        "model_dir": "integration/test_evaluate.py::test_it_says_what_the_run_says_and_more",
        "checkpoint": "integration/test_evaluate.py::test_raw_and_averaged_weights_of_any_checkpoint_in_any_batches",
        "weights": "integration/test_evaluate.py::test_raw_and_averaged_weights_of_any_checkpoint_in_any_batches",
        "data_dir": "integration/test_evaluate.py::test_other_data_are_normalised_as_the_runs_were",
        "statistics": "integration/test_evaluate.py::test_other_data_are_normalised_as_the_runs_were",
        "split": "integration/test_evaluate.py::test_a_split_without_some_classes_and_another_data_set",
        "cache_dir": "integration/test_cache.py::test_evaluations_exports_and_examples_have_a_cache_by_their_own_flags",
        "cache_bytes": "integration/test_cache.py::test_evaluations_exports_and_examples_have_a_cache_by_their_own_flags",
        "batch_size": "integration/test_train.py::test_evaluations_take_so_many_examples_at_a_time",
        "eval_copies": "unit/trainer/test_eval_copies.py::test_evaluations_take_the_mean_over_copies_whatever_the_batch",
        "mistakes": "integration/test_evaluate.py::test_mistakes_are_named_by_their_keys",
        "output": "integration/test_evaluate.py::test_it_says_what_the_run_says_and_more",
        "json": "integration/test_evaluate.py::test_mistakes_are_named_by_their_keys",
        "continuous": "integration/test_evaluate.py::test_beside_a_run_each_checkpoint_is_evaluated_once",
        "interval": "integration/test_evaluate.py::test_beside_a_run_each_checkpoint_is_evaluated_once",
        "where": "integration/test_views.py::test_a_run_sees_just_what_its_view_says",
        "limit": "integration/test_views.py::test_a_run_sees_just_what_its_view_says",
    },
    "trainer.export": {
        "output": "integration/test_export.py::test_what_it_says_and_writes",
        "model_dir": "integration/test_export.py::test_what_it_says_and_writes",
        "checkpoint": "integration/test_export.py::test_the_checkpoint_the_weights_and_the_examples_to_compare_on_are_those_of_the_flags",
        "weights": "integration/test_export.py::test_the_checkpoint_the_weights_and_the_examples_to_compare_on_are_those_of_the_flags",
        "data_dir": "integration/test_export.py::test_the_checkpoint_the_weights_and_the_examples_to_compare_on_are_those_of_the_flags",
        "statistics": "unit/trainer/test_inference.py::test_they_are_those_of_the_run_unless_others_are_given",
        "split": "integration/test_export.py::test_the_checkpoint_the_weights_and_the_examples_to_compare_on_are_those_of_the_flags",
        "cache_dir": "integration/test_cache.py::test_evaluations_exports_and_examples_have_a_cache_by_their_own_flags",
        "cache_bytes": "integration/test_cache.py::test_evaluations_exports_and_examples_have_a_cache_by_their_own_flags",
        "format": "integration/test_export.py::test_layers_of_the_users",
        "stablehlo_batch": "integration/test_export.py::test_what_it_says_and_writes",
        "examples": "integration/test_export.py::test_the_checkpoint_the_weights_and_the_examples_to_compare_on_are_those_of_the_flags",
        "tolerance": "integration/test_export.py::test_a_file_that_gives_other_numbers_is_not_exported",
    },
    "trainer.predict": {
        "inputs": "integration/test_predict.py::test_most_digits_are_read",
        "split": "unit/trainer/exporting/test_parsed.py::test_the_command_answers_records_of_files_and_of_splits",
        "model_dir": "integration/test_predict.py::test_most_digits_are_read",
        "exported": "integration/test_predict.py::test_an_exported_file_says_what_the_run_says",
        "checkpoint": "integration/test_predict.py::test_the_checkpoint_and_the_weights_are_those_of_the_flags",
        "weights": "integration/test_predict.py::test_the_checkpoint_and_the_weights_are_those_of_the_flags",
        "data_dir": "integration/test_predict.py::test_the_checkpoint_and_the_weights_are_those_of_the_flags",
        "top": "integration/test_predict.py::test_files_say_what_is_printed_and_batches_change_nothing",
        "output": "integration/test_predict.py::test_files_say_what_is_printed_and_batches_change_nothing",
        "batch_size": "integration/test_predict.py::test_files_say_what_is_printed_and_batches_change_nothing",
        "eval_copies": "unit/trainer/test_eval_copies.py::test_predictions_are_the_mean_over_copies_of_each_image",
    },
    "pipeline.inspect": {
        "classes": "unit/pipeline/inspect/test_inspect.py::test_the_contact_sheet_shows_a_view_and_the_table_its_columns",
        "mixture_schedule": "integration/test_schedules.py::test_steps_of_the_run_are_shown_and_made_again",
        "data_dir": "unit/pipeline/inspect/test_inspect.py::test_tables_show_counts_bytes_and_labels",
        "png": (
            "unit/pipeline/inspect/test_inspect.py::"
            "test_the_contact_sheet_shows_the_first_batch_as_stored_and_augmented"
        ),
        "split": "unit/pipeline/inspect/test_inspect.py::test_another_seed_or_split_is_another_picture",
        "augment": (
            "unit/pipeline/inspect/test_inspect.py::"
            "test_the_contact_sheet_shows_the_first_batch_as_stored_and_augmented"
        ),
        "seed": "unit/pipeline/inspect/test_inspect.py::test_another_seed_or_split_is_another_picture",
        "where": "unit/pipeline/inspect/test_inspect.py::test_the_contact_sheet_shows_a_view_and_the_table_its_columns",
        "limit": "unit/pipeline/inspect/test_inspect.py::test_the_contact_sheet_shows_a_view_and_the_table_its_columns",
        "balance": "unit/pipeline/inspect/test_inspect.py::test_the_contact_sheet_shows_a_view_and_the_table_its_columns",
        "weigh": "unit/pipeline/inspect/test_inspect.py::test_the_contact_sheet_shows_a_view_and_the_table_its_columns",
        "step": "unit/pipeline/inspect/test_steps.py::test_a_step_is_what_input_fn_feeds",
        "key": "unit/pipeline/inspect/test_steps.py::test_a_key_is_where_a_scan_of_an_epoch_finds_it",
        "epoch": "unit/pipeline/inspect/test_steps.py::test_a_key_is_where_a_scan_of_an_epoch_finds_it",
        "model_dir": "unit/pipeline/inspect/test_steps.py::test_the_flags_of_a_run_are_those_in_its_folder",
        "replicas": "unit/pipeline/inspect/test_steps.py::test_a_step_is_what_input_fn_feeds",
        "global_batch_size": "unit/pipeline/inspect/test_steps.py::test_each_flag_of_the_order_leads_to_the_runs_own",
        "remainder": "unit/pipeline/inspect/test_steps.py::test_each_flag_of_the_order_leads_to_the_runs_own",
        "streams": "unit/pipeline/inspect/test_steps.py::test_each_flag_of_the_order_leads_to_the_runs_own",
        "shuffle_bytes": "unit/pipeline/inspect/test_steps.py::test_each_flag_of_the_order_leads_to_the_runs_own",
        "resize": "unit/pipeline/inspect/test_steps.py::test_each_flag_of_the_order_leads_to_the_runs_own",
        "json": "unit/pipeline/inspect/test_steps.py::test_a_step_is_what_input_fn_feeds",
    },
    "pipeline.index": {
        "data_dir": "unit/pipeline/index/test_index.py::test_patterns_of_one_split_add_up_in_their_order",
        "split": "unit/pipeline/index/test_index.py::test_patterns_of_one_split_add_up_in_their_order",
        "compression": "unit/pipeline/index/test_index.py::test_compressed_files_need_no_flag_and_plain_ones_refuse_it",
        "overwrite": "unit/pipeline/index/test_index.py::test_its_own_manifest_is_replaced_where_that_is_asked_for",
        "feature_map": "unit/pipeline/index/test_images.py::test_class_names_are_those_of_the_file",
        "label_offset": "unit/pipeline/index/test_images.py::test_a_stored_label_of_minus_one_is_none_whatever_the_offset",
        "class_names": "unit/pipeline/index/test_images.py::test_class_names_are_those_of_the_file",
        "keep_columns": "unit/pipeline/index/test_images.py::test_class_names_are_those_of_the_file",
        "image_shape": "unit/pipeline/index/test_images.py::test_raw_pixels_in_place",
        "orientation": "unit/pipeline/index/test_orientation.py::test_what_is_fed_is_upright",
        "box_format": "unit/pipeline/index/test_annotation.py::test_boxes_of_each_convention_are_the_same",
        "point_format": "unit/pipeline/index/test_annotation.py::test_numbers_in_pixels_of_any_form",
        "mask_fill": "unit/pipeline/index/test_annotation.py::test_the_fill_of_a_mask_is_that_of_the_flag",
        "add_columns": "unit/pipeline/test_views.py::test_values_that_a_file_lacks_are_nan_false_or_empty",
    },
    "pipeline.audit": {
        "classes": "unit/pipeline/test_views.py::test_the_audit_compares_the_labels_of_some_classes",
        "mixture_schedule": ("unit/pipeline/audit/test_schedules.py::test_the_schedule_and_each_source_are_proved"),
        "model_dir": "integration/test_schedules.py::test_the_audit_of_a_run_knows_its_schedule_and_its_logs",
        "data_dir": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "global_batch_size": "unit/pipeline/audit/test_mixture.py::test_each_source_is_proved",
        "workers": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "replicas": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "split": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "seed": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "remainder": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "streams": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "shuffle_bytes": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "resize": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "augment": "unit/pipeline/audit/test_mixture.py::test_images_of_several_sizes_need_the_augmentation_of_the_run",
        "evaluation": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "epoch": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "against_workers": (
            "integration/test_audit.py::test_1024_workers_and_100_million_records_are_proved_from_the_manifest"
        ),
        "against_replicas": (
            "integration/test_audit.py::test_1024_workers_and_100_million_records_are_proved_from_the_manifest"
        ),
        "exhaustive": "unit/pipeline/audit/test_budget.py::test_exhaustive_replays_what_is_else_a_sample",
        "observed": "integration/test_row_logs.py::test_two_worker_processes",
        "png": "integration/test_audit.py::test_1024_workers_and_100_million_records_are_proved_from_the_manifest",
        "content": "integration/test_audit.py::test_an_input_that_gives_a_row_the_value_of_another_fails",
        "list_all": "unit/pipeline/audit/test_mixture.py::test_what_is_proved_is_the_order_of_the_flags",
        "where": "unit/pipeline/test_views.py::test_the_audit_proves_the_view_of_its_flags",
        "limit": "unit/pipeline/test_views.py::test_the_audit_proves_the_view_of_its_flags",
        "balance": "unit/pipeline/test_views.py::test_the_audit_proves_the_view_of_its_flags",
        "weigh": "unit/pipeline/test_views.py::test_the_audit_proves_the_view_of_its_flags",
        "skip_steps": "unit/pipeline/test_views.py::test_the_audit_proves_the_view_of_its_flags",
    },
    "pipeline.bench": {
        "classes": "unit/pipeline/bench/test_command.py::test_a_view_is_timed",
        "mixture_schedule": (
            "unit/pipeline/bench/test_command.py::test_a_mixture_is_timed_from_end_to_end_in_each_segment"
        ),
        "data_dir": "unit/pipeline/bench/test_command.py::test_the_input_is_that_of_the_flags",
        "split": "unit/pipeline/bench/test_command.py::test_the_input_is_that_of_the_flags",
        "global_batch_size": "unit/pipeline/bench/test_command.py::test_the_object_has_every_stage_and_adds_up",
        "augment": "unit/pipeline/bench/test_command.py::test_the_object_has_every_stage_and_adds_up",
        "augment_on": (
            "unit/pipeline/bench/test_command.py::test_the_table_has_a_bar_per_stage_and_what_bounds_the_input"
        ),
        "resize": "unit/pipeline/bench/test_command.py::test_the_input_is_that_of_the_flags",
        "shuffle_bytes": (
            "unit/pipeline/bench/test_command.py::test_the_table_has_a_bar_per_stage_and_what_bounds_the_input"
        ),
        "streams": "unit/pipeline/bench/test_command.py::test_the_table_has_a_bar_per_stage_and_what_bounds_the_input",
        "remainder": "unit/pipeline/bench/test_command.py::test_the_input_is_that_of_the_flags",
        "seed": "unit/pipeline/bench/test_command.py::test_the_object_has_every_stage_and_adds_up",
        "evaluation": "unit/pipeline/bench/test_command.py::test_the_input_is_that_of_the_flags",
        "replicas": "unit/pipeline/bench/test_command.py::test_the_input_is_that_of_the_flags",
        "rounds": "unit/pipeline/bench/test_command.py::test_each_part_is_sampled_in_so_many_rounds_of_so_many_steps",
        "steps": "unit/pipeline/bench/test_command.py::test_each_part_is_sampled_in_so_many_rounds_of_so_many_steps",
        "json": "unit/pipeline/bench/test_command.py::test_the_object_has_every_stage_and_adds_up",
        "where": "unit/pipeline/bench/test_command.py::test_a_view_is_timed",
        "limit": "unit/pipeline/bench/test_command.py::test_a_view_is_timed",
        "balance": "unit/pipeline/bench/test_command.py::test_a_view_is_timed",
        "weigh": "unit/pipeline/bench/test_command.py::test_a_view_is_timed",
    },
    "ExactResume": {
        "after": "unit/pipeline/test_keras.py::test_a_model_that_is_compiled_again_counts_on",
        "callbacks": "unit/pipeline/test_keras.py::test_callbacks_that_remember_do_as_in_a_run_that_was_never_stopped",
        "every": "unit/pipeline/test_keras.py::test_checkpoints_lie_so_many_steps_apart_and_so_many_are_kept",
        "keep": "unit/pipeline/test_keras.py::test_checkpoints_lie_so_many_steps_apart_and_so_many_are_kept",
    },
    "InputMeter": {"weights": "unit/pipeline/test_input_meter.py::test_without_weights_padding_is_unknown"},
    "RandomAccess": {
        "decode": "unit/pipeline/test_random_access.py::test_files_are_decoded_or_given_as_they_are",
        "cache_dir": "integration/test_cache.py::test_evaluations_exports_and_examples_have_a_cache_by_their_own_flags",
        "cache_bytes": "integration/test_cache.py::test_evaluations_exports_and_examples_have_a_cache_by_their_own_flags",
    },
    "Shard": {"local_replicas": "unit/pipeline/test_mixture.py::test_several_replicas_of_a_worker_take_turns"},
    "distribute": {
        "prefetch": "unit/pipeline/test_distribution.py::test_prefetch_puts_batches_on_the_gpu",
        "virtual_replicas": "unit/pipeline/batch/test_on_device.py::test_replicas_get_their_rows",
    },
    "augment": {
        "evaluation": (
            "unit/pipeline/augmentation/test_libraries.py::"
            "test_evaluations_of_another_size_need_a_transform_of_their_own"
        ),
    },
    "input_fn": {
        "classes": "unit/pipeline/test_views.py::test_the_records_of_some_classes_have_labels_of_their_own",
        "global_batch_size": "unit/pipeline/test_input.py::test_cardinality_and_shapes_are_known",
        "training": "unit/pipeline/test_input.py::test_cardinality_and_shapes_are_known",
        "seed": "unit/pipeline/test_input.py::test_the_users_own_function_gets_pixels_and_keys_by_seed_epoch_and_record",
        "start_step": "unit/pipeline/test_input.py::test_starting_at_a_step_gives_the_tail_of_the_run",
        "epochs": "unit/pipeline/test_input.py::test_cardinality_and_shapes_are_known",
        "augment": "unit/pipeline/test_input.py::test_the_users_own_function_gets_pixels_and_keys_by_seed_epoch_and_record",
        "augment_on": "unit/pipeline/batch/test_on_device.py::test_replicas_get_their_rows",
        "copies": "unit/pipeline/batch/test_copies.py::test_copies_are_what_the_recipe_makes_of_the_stored_images",
        "eval_copies": (
            "unit/pipeline/batch/test_copies.py::test_an_evaluation_has_its_own_image_first_and_then_augmented_ones"
        ),
        "resize": "unit/pipeline/test_mixture.py::test_images_of_other_sizes_are_stretched_to_one",
        "statistics": "unit/pipeline/test_mixture.py::test_all_are_normalised_by_the_first_sources_statistics",
        "features": "unit/pipeline/batch/test_on_device.py::test_features_are_handed_on",
        "label": "unit/pipeline/index/test_annotation.py::test_a_mask_may_take_the_place_of_labels",
        "parse": "unit/pipeline/test_step_iterator.py::test_what_a_parser_gives_keeps_its_structure",
        "remainder": "unit/pipeline/test_input.py::test_batches_are_the_orders_records_with_their_pixels_and_labels",
        "class_weight": "integration/test_class_weight.py::test_fit_makes_the_update_of_keras_with_its_class_weight",
        "weights": (
            "unit/pipeline/test_input.py::test_mean_weights_make_the_mean_over_the_batch_the_mean_over_real_rows"
        ),
        "streams": "unit/pipeline/audit/test_mixture.py::test_the_contract_says_what_is_fed",
        "shuffle_bytes": "unit/pipeline/audit/test_mixture.py::test_the_contract_says_what_is_fed",
        "record_bytes": "integration/test_phase_images.py::test_two_inputs_share_an_order_by_the_bytes_of_a_record",
        "shard": "unit/pipeline/test_input.py::test_shards_give_each_replica_its_rows",
        "on_corrupt": (
            "integration/test_corruption.py::test_twenty_damaged_records_have_weight_0_and_all_others_come_once"
        ),
        "max_corrupt": "integration/test_corruption.py::test_one_more_than_the_budget_is_an_error",
        "record_ids": "unit/pipeline/test_random_access.py::test_example_i_is_the_record_id_of_the_input",
        "portable": "integration/test_portable.py::test_a_service_in_another_process_feeds_the_same_batches",
        "cache_dir": "integration/test_cache.py::test_a_second_epoch_and_a_second_input_fetch_nothing",
        "cache_bytes": "integration/test_cache.py::test_a_cache_smaller_than_a_window_is_filled_and_the_rest_is_read_from_the_store",
        "where": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "limit": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "balance": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "weigh": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "skip_steps": "unit/pipeline/test_views.py::test_rows_of_skipped_steps_have_no_weight_and_others_are_as_before",
        "schedule": "unit/pipeline/test_schedule.py::test_a_source_goes_on_in_its_own_units_across_a_change",
    },
    "steps_per_epoch": {
        "classes": "unit/pipeline/test_views.py::test_the_records_of_some_classes_have_labels_of_their_own",
        "where": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "limit": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "balance": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "weigh": "unit/pipeline/test_views.py::test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image",
        "schedule": "unit/pipeline/test_schedule.py::test_an_epoch_is_counted_by_the_first_segment",
        "global_batch_size": "unit/pipeline/test_mixture.py::test_the_epoch_is_that_of_the_first_source",
        "remainder": "unit/pipeline/test_mixture.py::test_the_epoch_is_that_of_the_first_source",
    },
}


def flags_of(kind) -> list[str]:
    """Returns the flags that a command makes from a dataclass, including those of its groups."""
    hints = typing.get_type_hints(kind)
    groups = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return [
        flag for name, hint in groups.items() for flag in (flags_of(hint) if dataclasses.is_dataclass(hint) else [name])
    ]


def arguments_of(function) -> list[str]:
    """Returns the arguments of a function that a call may leave out, or has to name."""
    parameters = inspect.signature(function).parameters.values()
    optional = [p for p in parameters if p.default is not p.empty and p.name != "split"]
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p in optional]


def there_are() -> dict[str, set[str]]:
    """Returns the flags of the commands and the arguments of the public functions."""
    found = {}
    for command, where in CONFIGS.items():
        module, _, name = where.partition(":")
        kind = getattr(importlib.import_module(module), name)
        found[command] = {*flags_of(kind if isinstance(kind, type) else kind()), *BESIDES.get(command, ())}
    public = {name: {*arguments_of(getattr(pipeline, name))} for name in pipeline.__all__ if name != "uniform"}
    for name in PASSED_ON:  # to the same request
        public[name] -= public["input_fn"]
    return found | {name: arguments for name, arguments in public.items() if arguments}


@functools.cache
def definitions(path: pathlib.Path) -> dict[str, ast.AST]:
    """Returns the definitions in a module or a conftest.py above it, by name."""
    folders = [folder for folder in reversed(path.parents) if folder.is_relative_to(TESTS)]
    files = [*(folder / "conftest.py" for folder in folders), path]
    found: dict[str, ast.AST] = {}
    for file in filter(pathlib.Path.exists, files):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign):
                names = (n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name))
                found.update(dict.fromkeys(names, node))
    return found


def passes(path: pathlib.Path, test: str, flag: str) -> bool:
    """Whether a test, or what it uses of its module and the conftest.py above, has a flag as text or an argument."""
    known, seen, left = definitions(path), {test}, [test]
    while left:
        for node in ast.walk(known[left.pop()]):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and (text == flag or re.search(rf"--{flag}(?!\w)", text)):
                return True
            if isinstance(node, ast.keyword) and node.arg == flag:
                return True
            used = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
            if used in known and used not in seen:
                seen.add(used)
                left.append(used)
    return False


def test_no_flag_is_missing_or_gone():
    there, here = there_are(), {(what, flag) for what, flags in SEEN.items() for flag in flags}
    all_of_them = {(what, flag) for what, flags in there.items() for flag in flags}
    missing = [
        f'SEEN["{what}"]["{flag}"] = "<file below tests/>::<test that fails if {flag} is ignored>"'
        for what, flag in sorted(all_of_them - here)
    ]
    gone = [f'SEEN["{what}"]["{flag}"]' for what, flag in sorted(here - all_of_them)]
    assert not missing, "write a test that sees the effect, and add to tests/unit/test_flags.py:\n" + "\n".join(missing)
    assert not gone, "there is no such flag or argument; take out of tests/unit/test_flags.py:\n" + "\n".join(gone)


@pytest.mark.parametrize("what", SEEN)
def test_the_named_tests_exist_and_pass_the_flag(what):
    wrong = []
    for flag, named in SEEN[what].items():
        file, _, test = named.partition("::")
        path = TESTS / file
        if not path.is_file() or test not in definitions(path):
            wrong.append(f"{flag}: there is no test {named!r}")
        elif (
            flag == "data_dir" and what.startswith(("pipeline.", "beam_jobs.validate", "beam_jobs.edit"))
        ) or flag == "inputs":
            continue  # given by its place, without a name
        elif not passes(path, test, flag):
            wrong.append(f"{flag}: {named} has neither --{flag} nor an argument {flag}=")
    assert not wrong, f'name another test in SEEN["{what}"] of tests/unit/test_flags.py:\n' + "\n".join(wrong)


def test_what_a_test_passes_is_found(tmp_path):
    path = TESTS / "unit" / "test_flags.py"
    assert passes(path, "test_what_a_test_passes_is_found", "named_here")
    assert not passes(path, "test_what_a_test_passes_is_found", "named" + "_nowhere")
    assert not passes(path, "test_what_a_test_passes_is_found", "named_" + "her")
    tmp_path.joinpath("named_here")
