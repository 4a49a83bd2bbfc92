// What leaves the library; the symbol map has the last word.
#pragma once

#define RS_EXPORT __attribute__((visibility("default")))
