"""The recipes of docs/python.md, run as they stand there: a training that was saved and resumed ends with the weights, bit for bit, of
one that was not stopped."""
import importlib.util, pathlib, re, tempfile, unittest
import torch

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
STEPS, SAVED, BATCH = 4, 2, 8


def recipe(name, **names):
    """Runs the block of the page that begins with this comment; returns what it defined."""
    blocks = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S) if block.startswith(f"# {name}\n")]
    assert len(blocks) == 1, f"{len(blocks)} blocks of docs/python.md begin with {name}"
    exec(compile(blocks[0], f"docs/python.md: {name}", "exec"), names)
    return names


def has(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


class Model(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body = torch.nn.Sequential(torch.nn.Linear(13, 29), torch.nn.LayerNorm(29), torch.nn.Linear(29, 7))

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.body(x), labels)}


def rows(first, last):
    """The batches of steps first to last, as rows."""
    torch.manual_seed(100)
    x, labels = torch.randn(STEPS * BATCH, 13), torch.randn(STEPS * BATCH, 7)
    return [{"x": x[i], "labels": labels[i]} for i in range(first * BATCH, last * BATCH)]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


class Recipes(unittest.TestCase):
    def check(self, train):
        """train(model, optimizer, folder, first, last, resume_from) is one process's training."""
        with tempfile.TemporaryDirectory() as folder:
            whole, resumed = Model(1), Model(2)
            train(whole, adamw(whole), folder, 0, STEPS, None)
            saved = sorted(path.name for path in pathlib.Path(folder).glob("step-*"))
            self.assertEqual(saved, [f"step-{n}" for n in range(SAVED, STEPS + 1, SAVED)])
            with tempfile.TemporaryDirectory() as other:
                train(resumed, adamw(resumed), other, SAVED, STEPS, f"{folder}/step-{SAVED}")
        for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
            self.assertTrue(torch.equal(a, b), name)
        self.assertFalse(torch.equal(whole.body[0].weight, Model(1).body[0].weight), "nothing was trained")

    @unittest.skipUnless(has("transformers", "accelerate"), "transformers is not installed")
    def test_transformers(self):
        import transformers
        names = recipe("save and resume")
        callback = recipe("transformers", transformers=transformers, save=names["save"])["Tessera"]

        class Resume(transformers.TrainerCallback):
            def __init__(self, path):
                self.path = path

            def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
                names["resume"](self.path, model, optimizer.optimizer)

        class InOrder(transformers.Trainer):
            def _get_train_sampler(self, *_):
                return torch.utils.data.SequentialSampler(self.train_dataset)

        def train(model, optimizer, folder, first, last, resume_from):
            args = transformers.TrainingArguments(
                folder, per_device_train_batch_size=BATCH, num_train_epochs=1, save_strategy="no", save_steps=SAVED, report_to=[],
                lr_scheduler_type="constant", max_grad_norm=0, use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
            InOrder(model, args, train_dataset=rows(first, last), optimizers=(optimizer, None),
                    callbacks=[Resume(resume_from)] if resume_from else [callback()]).train()

        self.check(train)

    @unittest.skipUnless(has("accelerate"), "accelerate is not installed")
    def test_accelerate(self):
        import accelerate
        names = recipe("save and resume")

        def train(model, optimizer, folder, first, last, resume_from):
            accelerator = accelerate.Accelerator(cpu=True)
            loader = torch.utils.data.DataLoader(rows(first, last), batch_size=BATCH)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            if resume_from:
                names["resume"](resume_from, accelerator.unwrap_model(model), optimizer.optimizer)
            for step, batch in enumerate(loader, start=first + 1):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                recipe("accelerate", step=step, folder=folder, accelerator=accelerator, model=model, optimizer=optimizer,
                       save=names["save"])

        self.check(train)

    @unittest.skipUnless(has("lightning"), "lightning is not installed")
    def test_lightning(self):
        import lightning
        names = recipe("save and resume")
        callback = recipe("lightning", lightning=lightning, save=names["save"])["Tessera"]

        class Resume(lightning.Callback):
            def __init__(self, path):
                self.path = path

            def on_train_start(self, trainer, module):
                names["resume"](self.path, module, trainer.optimizers[0])

        class Module(lightning.LightningModule):
            def __init__(self, model, optimizer):
                super().__init__()
                self.model, self.made = model, optimizer

            def training_step(self, batch, _):
                return self.model(**batch)["loss"]

            def configure_optimizers(self):
                return self.made

        def train(model, optimizer, folder, first, last, resume_from):
            trainer = lightning.Trainer(
                default_root_dir=folder, max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, callbacks=[Resume(resume_from) if resume_from else callback()])
            trainer.fit(Module(model, optimizer), torch.utils.data.DataLoader(rows(first, last), batch_size=BATCH))

        self.check(train)


if __name__ == "__main__":
    if not has("transformers") and not has("accelerate") and not has("lightning"):
        print("skipped: none of transformers, accelerate and lightning is installed")
        raise SystemExit(77)
    unittest.main(verbosity=2)
