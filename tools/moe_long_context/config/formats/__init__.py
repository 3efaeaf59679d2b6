"""Readers of the frameworks' own configuration forms; each ends in the fields of Bridge's ConfigContainer.

bridge_fields   Bridge fields -> run configuration, the one translation all readers share
bridge_yaml     run_config.yaml as Bridge dumps it
overrides       key=value lists and run_recipe.py launch lines
megatron_lm     launch scripts and argument lists of pretrain_gpt.py
blocks          the Megatron blocks of verl, ms-swift and slime
remark          the one comment line that holds what a form cannot say
"""
