// Decodes rows of a type by its number, and defines what ggml-quants.c needs of the rest of ggml.
#include "ggml-quants.h"
#include "ggml.h"
#include <stdlib.h>

#define TYPE(number, type) case number: dequantize_row_##type((const block_##type *) in, out, elements); break;

void peers_ggml(int number, const void * in, float * out, int64_t elements) {
    switch (number) {
        TYPE(2, q4_0) TYPE(3, q4_1) TYPE(6, q5_0) TYPE(7, q5_1) TYPE(8, q8_0)
        TYPE(10, q2_K) TYPE(11, q3_K) TYPE(12, q4_K) TYPE(13, q5_K) TYPE(14, q6_K) TYPE(15, q8_K)
        TYPE(16, iq2_xxs) TYPE(17, iq2_xs) TYPE(18, iq3_xxs) TYPE(19, iq1_s) TYPE(20, iq4_nl)
        TYPE(21, iq3_s) TYPE(22, iq2_s) TYPE(23, iq4_xs) TYPE(29, iq1_m) TYPE(34, tq1_0) TYPE(35, tq2_0)
        TYPE(39, mxfp4) TYPE(40, nvfp4) TYPE(41, q1_0) TYPE(42, q2_0)
        default: abort();
    }
}

float ggml_table_f32_f16[1 << 16];
void ggml_abort(const char * file, int line, const char * text, ...) { abort(); }
void ggml_critical_section_start(void) {}
void ggml_critical_section_end(void) {}
void ggml_log_internal(enum ggml_log_level level, const char * text, ...) {}
size_t ggml_row_size(enum ggml_type type, int64_t elements) { abort(); }
size_t ggml_type_size(enum ggml_type type) { abort(); }
int64_t ggml_blck_size(enum ggml_type type) { abort(); }
const char * ggml_type_name(enum ggml_type type) { abort(); }
