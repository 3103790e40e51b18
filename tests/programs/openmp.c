// A loop that the threads of OpenMP share out, once a call.

static double values[4096];

void step(int turns)
{
#pragma omp parallel for
    for (int part = 0; part < 64; part++) {
        double value = part;
        for (int turn = 0; turn < turns; turn++) {
            value = value * 1.0000001 + 1e-9;
        }
        values[part * 64] = value;
    }
}
