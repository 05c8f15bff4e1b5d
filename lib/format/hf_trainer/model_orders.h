#pragma once
// The order in which the modules of transformers' models register their children, written by
// python/make_model_orders.py from transformers 5.24.0. A row: model types, and for each module (by
// the last word of its name, "" for the model itself) its children in that order; where classes of
// one type differ, lists stand side by side.
//
//   "module:child child,child child|module:child"
//
// `weight` before `bias` goes without saying.
#include <array>
#include <string_view>

namespace tessera::hf_trainer {

struct ModelOrder {
  std::string_view model_types;  // as config.json has them
  std::string_view children;
};

// clang-format off
inline constexpr std::array<ModelOrder, 45> kModelOrders = {{
    {"albert",
     ":albert classifier,albert predictions sop_classifier,albert qa_outputs,embeddings "
     "encoder pooler|albert:embeddings encoder pooler|albert_layer_groups:albert_layers|"
     "albert_layers:full_layer_layer_norm attention ffn ffn_output|attention:query key "
     "value dense LayerNorm|embeddings:word_embeddings position_embeddings "
     "token_type_embeddings LayerNorm|encoder:embedding_hidden_mapping_in "
     "albert_layer_groups|predictions:bias LayerNorm dense|sop_classifier:classifier"},
    {"bart",
     ":model classification_head,model qa_outputs,shared encoder decoder|"
     "classification_head:dense out_proj|decoder:embed_tokens embed_positions layers "
     "layernorm_embedding|encoder:embed_positions layers layernorm_embedding|"
     "encoder_attn:k_proj v_proj q_proj out_proj|layers:self_attn self_attn_layer_norm "
     "encoder_attn encoder_attn_layer_norm fc1 fc2 final_layer_norm|model:shared encoder "
     "decoder|self_attn:k_proj v_proj q_proj out_proj"},
    {"bert",
     ":bert classifier,bert cls,bert qa_outputs,embeddings encoder pooler|attention:self "
     "output|bert:embeddings encoder pooler|cls:predictions seq_relationship|"
     "embeddings:word_embeddings position_embeddings token_type_embeddings LayerNorm|"
     "encoder:layer|intermediate:dense|layer:attention intermediate output|output:dense "
     "LayerNorm|pooler:dense|predictions:bias transform|self:query key value|"
     "transform:dense LayerNorm"},
    {"bloom",
     ":transformer classifier,transformer qa_outputs,transformer score,word_embeddings "
     "word_embeddings_layernorm h ln_f|h:input_layernorm self_attention "
     "post_attention_layernorm mlp|mlp:dense_h_to_4h dense_4h_to_h|"
     "self_attention:query_key_value dense|transformer:word_embeddings "
     "word_embeddings_layernorm h ln_f"},
    {"cohere",
     ":embed_tokens layers norm,model|layers:self_attn mlp input_layernorm|mlp:gate_proj "
     "up_proj down_proj|model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj "
     "o_proj"},
    {"deberta",
     ":deberta cls,deberta pooler classifier,deberta qa_outputs,embeddings encoder|"
     "attention:self output|cls:predictions|deberta:embeddings encoder|"
     "embeddings:word_embeddings position_embeddings LayerNorm|encoder:layer|"
     "intermediate:dense|layer:attention intermediate output|output:dense LayerNorm|"
     "pooler:dense|predictions:bias transform|self:q_bias v_bias in_proj|transform:dense "
     "LayerNorm"},
    {"deberta-v2",
     ":deberta cls,deberta pooler classifier,deberta qa_outputs,embeddings encoder|"
     "attention:self output|cls:predictions|deberta:embeddings encoder|"
     "embeddings:word_embeddings position_embeddings LayerNorm|encoder:layer|"
     "intermediate:dense|layer:attention intermediate output|output:dense LayerNorm|"
     "pooler:dense|predictions:bias transform|self:query_proj key_proj value_proj|"
     "transform:dense LayerNorm"},
    {"distilbert",
     ":distilbert pre_classifier classifier,distilbert qa_outputs,distilbert "
     "vocab_transform vocab_layer_norm vocab_projector,embeddings transformer|"
     "attention:q_lin k_lin v_lin out_lin|distilbert:embeddings transformer|"
     "embeddings:word_embeddings position_embeddings LayerNorm|ffn:lin1 lin2|"
     "layer:attention sa_layer_norm ffn output_layer_norm|transformer:layer"},
    {"electra",
     ":electra discriminator_predictions,electra generator_predictions generator_lm_head,"
     "electra qa_outputs,electra sequence_summary classifier,embeddings "
     "embeddings_project encoder|attention:self output|classifier:dense out_proj|"
     "discriminator_predictions:dense dense_prediction|electra:embeddings "
     "embeddings_project encoder|embeddings:word_embeddings position_embeddings "
     "token_type_embeddings LayerNorm|encoder:layer|generator_predictions:LayerNorm dense|"
     "intermediate:dense|layer:attention intermediate output|output:dense LayerNorm|"
     "self:query key value|sequence_summary:summary"},
    {"falcon",
     ":transformer classifier,transformer qa_outputs,transformer score,word_embeddings h "
     "ln_f|h:self_attention mlp input_layernorm|mlp:dense_h_to_4h dense_4h_to_h|"
     "self_attention:query_key_value dense|transformer:word_embeddings h ln_f"},
    {"gemma",
     ":embed_tokens layers norm,model score|layers:self_attn mlp input_layernorm "
     "post_attention_layernorm|mlp:gate_proj up_proj down_proj|model:embed_tokens layers "
     "norm|self_attn:q_proj k_proj v_proj o_proj"},
    {"gemma2",
     ":embed_tokens layers norm,model score|layers:self_attn mlp input_layernorm "
     "post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm|"
     "mlp:gate_proj up_proj down_proj|model:embed_tokens layers norm|self_attn:q_proj "
     "k_proj v_proj o_proj"},
    {"gemma3_text",
     ":embed_tokens layers norm,model score|layers:self_attn mlp input_layernorm "
     "post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm|"
     "mlp:gate_proj up_proj down_proj|model:embed_tokens layers norm|self_attn:q_proj "
     "k_proj v_proj o_proj q_norm k_norm"},
    {"glm",
     ":embed_tokens layers norm,model lm_head,model score|layers:self_attn mlp "
     "input_layernorm post_attention_layernorm|mlp:gate_up_proj down_proj|"
     "model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj o_proj"},
    {"glm4",
     ":embed_tokens layers norm,model lm_head,model score|layers:self_attn mlp "
     "input_layernorm post_attention_layernorm post_self_attn_layernorm "
     "post_mlp_layernorm|mlp:gate_up_proj down_proj|model:embed_tokens layers norm|"
     "self_attn:q_proj k_proj v_proj o_proj"},
    {"gpt2",
     ":transformer classifier,transformer qa_outputs,transformer score,wte wpe h ln_f|"
     "attn:c_attn c_proj|h:ln_1 attn ln_2 mlp|mlp:c_fc c_proj|transformer:wte wpe h ln_f"},
    {"gpt_neo",
     ":transformer classifier,transformer qa_outputs,transformer score,wte wpe h ln_f|"
     "attention:k_proj v_proj q_proj out_proj|attn:attention|h:ln_1 attn ln_2 mlp|"
     "mlp:c_fc c_proj|transformer:wte wpe h ln_f"},
    {"gptj",
     ":transformer lm_head,transformer qa_outputs,transformer score,wte h ln_f|"
     "attn:k_proj v_proj q_proj out_proj|h:ln_1 attn mlp|mlp:fc_in fc_out|transformer:wte "
     "h ln_f"},
    {"granite",
     ":embed_tokens layers norm,model lm_head|layers:self_attn mlp input_layernorm "
     "post_attention_layernorm|mlp:gate_proj up_proj down_proj|model:embed_tokens layers "
     "norm|self_attn:q_proj k_proj v_proj o_proj"},
    {"hubert",
     ":hubert lm_head,hubert projector classifier,masked_spec_embed feature_extractor "
     "feature_projection encoder|attention:k_proj v_proj q_proj out_proj|conv:bias "
     "parametrizations|conv_layers:conv layer_norm|encoder:pos_conv_embed layer_norm "
     "layers|feature_extractor:conv_layers|feature_projection:layer_norm projection|"
     "feed_forward:intermediate_dense output_dense|hubert:masked_spec_embed "
     "feature_extractor feature_projection encoder|layers:attention layer_norm "
     "feed_forward final_layer_norm|pos_conv_embed:conv|weight:original0 original1"},
    {"llama qwen2",
     ":embed_tokens layers norm,model lm_head,model score,transformer qa_outputs|"
     "layers:self_attn mlp input_layernorm post_attention_layernorm|mlp:gate_proj up_proj "
     "down_proj|model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj o_proj|"
     "transformer:embed_tokens layers norm"},
    {"longformer",
     ":embeddings encoder pooler,longformer classifier,longformer lm_head,longformer "
     "qa_outputs|attention:self output|classifier:dense out_proj|"
     "embeddings:word_embeddings token_type_embeddings LayerNorm position_embeddings|"
     "encoder:layer|intermediate:dense|layer:attention intermediate output|lm_head:bias "
     "dense layer_norm|longformer:embeddings encoder pooler|output:dense LayerNorm|"
     "pooler:dense|self:query key value query_global key_global value_global"},
    {"mamba",
     ":backbone,embeddings layers norm_f|backbone:embeddings layers norm_f|layers:norm "
     "mixer|mixer:A_log D conv1d in_proj x_proj dt_proj out_proj"},
    {"marian",
     ":model,shared encoder decoder|decoder:embed_tokens embed_positions layers|"
     "encoder:embed_positions layers|encoder_attn:k_proj v_proj q_proj out_proj|"
     "layers:self_attn self_attn_layer_norm encoder_attn encoder_attn_layer_norm fc1 fc2 "
     "final_layer_norm|model:shared encoder decoder|self_attn:k_proj v_proj q_proj "
     "out_proj"},
    {"mbart",
     ":model classification_head,model qa_outputs,shared encoder decoder|"
     "classification_head:dense out_proj|decoder:embed_tokens embed_positions layers "
     "layernorm_embedding layer_norm|encoder:embed_positions layers layernorm_embedding "
     "layer_norm|encoder_attn:k_proj v_proj q_proj out_proj|layers:self_attn "
     "self_attn_layer_norm encoder_attn encoder_attn_layer_norm fc1 fc2 final_layer_norm|"
     "model:shared encoder decoder|self_attn:k_proj v_proj q_proj out_proj"},
    {"mistral",
     ":embed_tokens layers norm,model lm_head,model qa_outputs,model score|"
     "layers:self_attn mlp input_layernorm post_attention_layernorm|mlp:gate_proj up_proj "
     "down_proj|model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj o_proj"},
    {"modernbert",
     ":embeddings layers final_norm,model head classifier,model head decoder|attn:Wqkv Wo|"
     "embeddings:tok_embeddings norm|head:dense norm|layers:attn_norm attn mlp_norm mlp|"
     "mlp:Wi Wo|model:embeddings layers final_norm"},
    {"mpnet",
     ":embeddings encoder pooler,mpnet classifier,mpnet lm_head,mpnet qa_outputs|"
     "attention:attn LayerNorm|attn:q k v o|classifier:dense out_proj|"
     "embeddings:word_embeddings position_embeddings LayerNorm|encoder:layer "
     "relative_attention_bias|intermediate:dense|layer:attention intermediate output|"
     "lm_head:bias dense layer_norm|mpnet:embeddings encoder pooler|output:dense "
     "LayerNorm|pooler:dense"},
    {"mpt",
     ":transformer classifier,transformer qa_outputs,transformer score,wte blocks norm_f|"
     "attn:Wqkv out_proj|blocks:norm_1 attn norm_2 ffn|ffn:up_proj down_proj|"
     "transformer:wte blocks norm_f"},
    {"mt5",
     ":shared encoder decoder qa_outputs,transformer classification_head,transformer "
     "classifier|DenseReluDense:wi_0 wi_1 wo|EncDecAttention:q k v o|SelfAttention:q k v "
     "o relative_attention_bias|block:layer|classification_head:dense out_proj|"
     "decoder:block final_layer_norm|encoder:block final_layer_norm|layer:DenseReluDense "
     "layer_norm,EncDecAttention layer_norm,SelfAttention layer_norm|transformer:shared "
     "encoder decoder"},
    {"olmo",
     ":embed_tokens layers,model lm_head,model score|layers:self_attn mlp|mlp:gate_proj "
     "up_proj down_proj|model:embed_tokens layers|self_attn:q_proj k_proj v_proj o_proj"},
    {"olmo2",
     ":embed_tokens layers norm,model lm_head,model score|layers:self_attn mlp "
     "post_attention_layernorm post_feedforward_layernorm|mlp:gate_proj up_proj down_proj|"
     "model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj o_proj q_norm k_norm"},
    {"opt",
     ":decoder,model qa_outputs,model score|decoder:embed_tokens embed_positions "
     "final_layer_norm layers|layers:self_attn self_attn_layer_norm fc1 fc2 "
     "final_layer_norm|model:decoder|self_attn:k_proj v_proj q_proj out_proj"},
    {"pegasus",
     ":model,shared encoder decoder|decoder:embed_tokens embed_positions layers "
     "layer_norm|encoder:embed_positions layers layer_norm|encoder_attn:k_proj v_proj "
     "q_proj out_proj|layers:self_attn self_attn_layer_norm encoder_attn "
     "encoder_attn_layer_norm fc1 fc2 final_layer_norm|model:shared encoder decoder|"
     "self_attn:k_proj v_proj q_proj out_proj"},
    {"phi",
     ":embed_tokens layers final_layernorm,model lm_head,model score|layers:self_attn mlp "
     "input_layernorm|mlp:fc1 fc2|model:embed_tokens layers final_layernorm|"
     "self_attn:q_proj k_proj v_proj dense"},
    {"phi3",
     ":embed_tokens layers norm,model lm_head,model score|layers:self_attn mlp "
     "input_layernorm post_attention_layernorm|mlp:gate_up_proj down_proj|"
     "model:embed_tokens layers norm|self_attn:o_proj qkv_proj"},
    {"qwen3",
     ":embed_tokens layers norm,model lm_head,model score,transformer qa_outputs|"
     "layers:self_attn mlp input_layernorm post_attention_layernorm|mlp:gate_proj up_proj "
     "down_proj|model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj o_proj "
     "q_norm k_norm|transformer:embed_tokens layers norm"},
    {"roberta",
     ":embeddings encoder pooler,roberta classifier,roberta lm_head,roberta qa_outputs|"
     "attention:self output|classifier:dense out_proj|embeddings:word_embeddings "
     "token_type_embeddings LayerNorm position_embeddings|encoder:layer|"
     "intermediate:dense|layer:attention intermediate output|lm_head:bias dense "
     "layer_norm|output:dense LayerNorm|pooler:dense|roberta:embeddings encoder pooler|"
     "self:query key value"},
    {"smollm3",
     ":embed_tokens layers norm,model score,transformer qa_outputs|layers:self_attn mlp "
     "input_layernorm post_attention_layernorm|mlp:gate_proj up_proj down_proj|"
     "model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj o_proj|"
     "transformer:embed_tokens layers norm"},
    {"stablelm",
     ":embed_tokens layers norm,model lm_head,model score|layers:self_attn mlp "
     "input_layernorm post_attention_layernorm|mlp:gate_proj up_proj down_proj|"
     "model:embed_tokens layers norm|self_attn:q_proj k_proj v_proj o_proj"},
    {"starcoder2",
     ":embed_tokens layers norm,model score|layers:self_attn mlp input_layernorm "
     "post_attention_layernorm|mlp:c_fc c_proj|model:embed_tokens layers norm|"
     "self_attn:q_proj k_proj v_proj o_proj"},
    {"t5",
     ":shared encoder decoder qa_outputs,transformer classification_head,transformer "
     "classifier|DenseReluDense:wi wo|EncDecAttention:q k v o|SelfAttention:q k v o "
     "relative_attention_bias|block:layer|classification_head:dense out_proj|"
     "decoder:block final_layer_norm|encoder:block final_layer_norm|layer:DenseReluDense "
     "layer_norm,EncDecAttention layer_norm,SelfAttention layer_norm|transformer:shared "
     "encoder decoder"},
    {"wav2vec2",
     ":masked_spec_embed feature_extractor feature_projection encoder,wav2vec2 lm_head,"
     "wav2vec2 projector tdnn feature_extractor classifier objective,wav2vec2 quantizer "
     "project_hid project_q|attention:k_proj v_proj q_proj out_proj|conv:bias "
     "parametrizations|conv_layers:conv layer_norm|encoder:pos_conv_embed layer_norm "
     "layers|feature_extractor:conv_layers|feature_projection:layer_norm projection|"
     "feed_forward:intermediate_dense output_dense|layers:attention layer_norm "
     "feed_forward final_layer_norm|pos_conv_embed:conv|quantizer:codevectors weight_proj|"
     "tdnn:kernel|wav2vec2:masked_spec_embed feature_extractor feature_projection encoder|"
     "weight:original0 original1"},
    {"whisper",
     ":encoder decoder,encoder projector classifier,model|decoder:embed_tokens "
     "embed_positions layers layer_norm|encoder:conv1 conv2 embed_positions layers "
     "layer_norm|encoder_attn:k_proj v_proj q_proj out_proj|layers:self_attn "
     "self_attn_layer_norm encoder_attn encoder_attn_layer_norm fc1 fc2 final_layer_norm|"
     "model:encoder decoder|self_attn:k_proj v_proj q_proj out_proj"},
    {"xlm-roberta camembert",
     ":classifier roberta,embeddings encoder pooler,lm_head roberta,qa_outputs roberta|"
     "attention:self output|classifier:dense out_proj|embeddings:word_embeddings "
     "token_type_embeddings LayerNorm position_embeddings|encoder:layer|"
     "intermediate:dense|layer:attention intermediate output|lm_head:bias dense "
     "layer_norm decoder|output:dense LayerNorm|pooler:dense|roberta:embeddings encoder "
     "pooler|self:query key value"},
}};
// clang-format on

}  // namespace tessera::hf_trainer
