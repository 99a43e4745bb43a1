"""A model whose parameters are sharded over processes (FSDP2's `fully_shard`): every process holds a part of each.

FSDP's own hooks do not survive a private copy and other values for the parameters. The copy is an ordinary module whose
parameters are the parts that this process holds, as flat tensors, and each unit of FSDP's (`fully_shard` was called on it)
gathers its whole weights while it is called. Gathering and its transpose are linear and each other's derivative:

    G: parts ↦ whole weights on every process,    Gᵀ: a gradient on every process ↦ the part of their sum,

so that gradients and products with vectors come out as parts of the sums over all processes, and vectors live as the parameters
do. No process holds more than its parts and the weights of one unit (and of those around it): weights that a forward pass would
keep for its backward pass are dropped, and gathered once more when they are needed. Products with the Hessian collect gradients
by the whole weights of all units, complete at the end of the second backward pass only: one vector of P numbers more.

Every pass is a sequence of collectives, the same in all processes. Outside `summing` all of them look at the same rows.
"""
