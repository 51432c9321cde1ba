"""The workflow of the DistFlow programming guide, as written there."""

WORKFLOW = """
# from workflow_grpo.yaml
nodes:
  - node_id: "rollout_actor"
    node_type: "MODEL_INFERENCE"
    node_role: "ROLLOUT"
    dependencies: []

  - node_id: "function_reward"
    node_type: "COMPUTE"
    node_role: "REWARD"
    dependencies:
      - "rollout_actor"
"""
