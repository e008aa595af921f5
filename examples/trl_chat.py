"""TRL's GRPOTrainer on the chat task, in one process or many; every option of GRPOConfig is an option here:

accelerate launch --multi_gpu --num_processes 8 examples/trl_chat.py --model_name_or_path MODEL --beta 0.01
"""

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser

from rookworld_rlvr.interop.trl import chat_rows, reward_functions


def main():
    parser = TrlParser([GRPOConfig, ModelConfig])
    # Of the defaults only what this task needs: short answers, and a group per prompt.
    parser.set_defaults(
        output_dir="outputs/trl",
        max_completion_length=32,
        num_generations=8,
        per_device_train_batch_size=8,
        learning_rate=2e-5,
        logging_steps=1,
    )
    config, model = parser.parse_args_and_config()
    trainer = GRPOTrainer(
        model=model.model_name_or_path,
        args=config,
        # The last function is that of the chat task.
        reward_funcs=reward_functions()[-1:],
        train_dataset=Dataset.from_list(chat_rows()),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
