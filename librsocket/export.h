// Marks functions that the library exports, as far as the symbol map permits.
#pragma once

#define RS_EXPORT __attribute__((visibility("default")))
