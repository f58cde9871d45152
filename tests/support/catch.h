#pragma once
// Catch2 v2 (Debian 12) and v3 (Debian 13, Ubuntu 24.04) under one include.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
inline auto contains(const std::string& text) { return ContainsSubstring(text); }
#else
#include <catch2/catch.hpp>
inline auto contains(const std::string& text) { return Catch::Matchers::Contains(text); }
#endif
