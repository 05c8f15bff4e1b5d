#pragma once
// hf-trainer: what Hugging Face's Trainer and accelerate's save_state leave in one folder: weights,
// and the optimizer, schedule and loss scale as files of torch.save. Written from its own kind alone.
// Stateless; thread-safe. docs/formats/hf-trainer.md has the layout.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& hf_trainer_driver();

}  // namespace tessera
