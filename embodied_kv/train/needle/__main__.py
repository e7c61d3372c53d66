from embodied_kv.train.needle.trainer import main

if __name__ == '__main__':
    main()
