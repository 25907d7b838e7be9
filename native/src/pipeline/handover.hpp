// Measures on the live transport where handing over to a plain all-gather begins.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/control_rows.hpp"
#include "pipeline/engine.hpp"
#include "policy/handover.hpp"

namespace ciera::pipeline {

// Collective; blocks. The slowest rank's figures, the same on every rank. Takes the memory of a few
// shards of 16 MiB meanwhile; a rank that has it not makes every rank measure smaller ones.
std::vector<policy::HandoverSample> measure_handover(Engine& engine, ControlPlane& control);

}  // namespace ciera::pipeline
