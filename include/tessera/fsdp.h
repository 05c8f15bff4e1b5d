#pragma once
// The FSDP runtime: fully sharded data parallel training of LibTorch modules.
//
//   struct BlockImpl : torch::nn::Module { torch::Tensor forward(torch::Tensor x); };
//   FSDP_MODULE(Block);                                        // instead of TORCH_MODULE(Block)
//
//   fsdp::World world = fsdp::init_from_env();
//   fsdp::Options options;
//   options.mesh = world.mesh();
//   for (auto& block : model->blocks) fsdp::fully_shard(block, options);
//   fsdp::fully_shard(model, options);
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);   // after sharding
//   loss(model->forward(x)).backward();  optimizer.step();
#include <tessera/fsdp/checkpoint.h>
#include <tessera/fsdp/comm_hook.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/device_mesh.h>
#include <tessera/fsdp/extension.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/fsdp/fused_adamw.h>
#include <tessera/fsdp/grad_scaler.h>
#include <tessera/fsdp/hook_slot.h>
#include <tessera/fsdp/meta_init.h>
#include <tessera/fsdp/module.h>
#include <tessera/fsdp/muon.h>
#include <tessera/fsdp/optimizer_in_backward.h>
#include <tessera/fsdp/options.h>
#include <tessera/fsdp/state_dict.h>
#include <tessera/fsdp/tensor_parallel.h>
#include <tessera/fsdp/training.h>
#include <tessera/fsdp/whole_tensors.h>
#include <tessera/fsdp/world.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
