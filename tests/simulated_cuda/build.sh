T=$(/work/envs/lead/bin/python -c "import torch;print(torch.__path__[0])")
g++ -O1 -shared -fPIC -std=c++20 -o /tmp/acc/sim.so device.cpp -I$T/include -I$T/include/torch/csrc/api/include -L$T/lib -lc10 -ltorch_cpu
