#pragma once
#include <gloo/context.h>  // all that is needed is there
