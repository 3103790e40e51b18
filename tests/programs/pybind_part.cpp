/* Calls back into Python by pybind11. */

#include <pybind11/pybind11.h>

namespace parts
{
__attribute__((noinline)) pybind11::object pybind_calls(pybind11::object function)
{
    pybind11::object result = function();
    asm volatile(""); /* no tail call */
    return result;
}
} // namespace parts

PYBIND11_MODULE(pybind_part, module)
{
    module.def("pybind_calls", &parts::pybind_calls);
}
